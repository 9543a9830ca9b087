//! Pod of a process, by its control group.

use std::path::Path;

/// Returns the UID of the pod of a process; `None` if it is outside of pods, or has ended.
pub fn pod_of(directory: &Path, process: u32) -> Option<String> {
    pod_uid(&std::fs::read_to_string(directory.join(process.to_string()).join("cgroup")).ok()?)
}

/// Reads the UID of a pod off the paths of control groups. The kubelet names them `pod<UID>`, or with systemd
/// `kubepods-burstable-pod<UID with underscores>.slice`.
fn pod_uid(control_groups: &str) -> Option<String> {
    let paths = control_groups.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    paths.flat_map(|path| path.split('/')).find_map(|part| {
        let (_, uid) = part.strip_suffix(".slice").unwrap_or(part).rsplit_once("pod")?;
        let uid = uid.replace('_', "-");
        is_uid(&uid).then_some(uid)
    })
}

fn is_uid(text: &str) -> bool {
    let fits = |(at, byte): (usize, u8)| if matches!(at, 8 | 13 | 18 | 23) { byte == b'-' } else { byte.is_ascii_hexdigit() };
    text.len() == 36 && text.bytes().enumerate().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_known_by_their_control_groups() {
        let uid = "0f3c1c2e-8a5b-4f6d-9c11-2b7d1f0e4a55";
        let slice = uid.replace('-', "_");
        for text in [
            format!("0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{slice}.slice/cri-containerd-1f.scope\n"),
            format!("0::/../../kubepods-pod{slice}.slice/cri-containerd-1f.scope\n"),
            format!("12:cpuset:/\n5:devices:/kubepods/besteffort/pod{uid}/1f\n"),
        ] {
            assert_eq!(pod_uid(&text).as_deref(), Some(uid), "{text}");
        }
        for text in ["", "0::/\n", "0::/system.slice/podman-1.scope", "0::/kubepods/pod1234/x", "0::/user.slice/pod"] {
            assert_eq!(pod_uid(text), None, "{text}");
        }
        assert_eq!(pod_of(Path::new("/nowhere"), 1), None);
    }
}
