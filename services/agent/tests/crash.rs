//! The program itself, killed: after the next start everything is as it was.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use eadt_nvml::fake::{FakeLibrary, FakeMps, FakeSettings};

struct Setup {
    fake: FakeLibrary,
    mps: FakeMps,
    folder: tempfile::TempDir,
}

impl Setup {
    fn new() -> Self {
        let setup = Self { fake: FakeLibrary::new(""), mps: FakeMps::new("100.0"), folder: tempfile::tempdir().unwrap() };
        let text = format!(
            "[log]\nfilter = \"warn\"\n[http]\naddress = \"127.0.0.1:0\"\n[agent]\nnode = \"n\"\nstate_dir = '{}'\n\
             intents_file = '{}'\nlibrary_path = '{}'\ncheck_seconds = 0.05\n[agent.mps]\nenabled = true\n\
             pipe_directories = ['{}']\ncontrol_program = '{}'\ntimeout_seconds = 60\n",
            setup.path("state").display(),
            setup.path("wish.json").display(),
            setup.fake.library().display(),
            setup.mps.pipe_directory().display(),
            setup.mps.program().display(),
        );
        std::fs::write(setup.path("agent.toml"), text).unwrap();
        setup
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    fn agent(&self, command: &str) -> Command {
        let mut agent = Command::new(env!("CARGO_BIN_EXE_eadt-agent"));
        agent.args(["--config".as_ref(), self.path("agent.toml").as_os_str(), command.as_ref()]);
        agent.env_remove("KAFKA_BROKERS").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        agent
    }

    fn wish(&self, watts: u32, mhz: u32, percent: u32) {
        let tenants = "[{\"workload\": \"n/a\", \"allows_default_change\": true}]";
        let text = format!(
            "{{\"devices\": [{{\"power_limit_watts\": {watts}, \"sm_clock_mhz\": {mhz}}}], \"time_to_live_seconds\": 600, \
             \"mps_default_thread_percentage\": {percent}, \"mps_tenants\": {tenants}}}"
        );
        std::fs::write(self.path("next.json"), text).unwrap();
        std::fs::rename(self.path("next.json"), self.path("wish.json")).unwrap();
    }

    fn as_before(&self) -> bool {
        (0..4).all(|gpu| self.fake.settings(gpu) == before(gpu)) && self.mps.default().parse() == Ok(100.0)
    }

    fn records(&self) -> usize {
        std::fs::read_dir(self.path("state")).unwrap().filter(|file| is_record(&file.as_ref().unwrap().path())).count()
    }
}

fn is_record(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "json")
}

/// Returns the owner's settings of a GPU: not all are defaults.
fn before(gpu: u32) -> FakeSettings {
    FakeSettings { power_milliwatts: 700_000 - 12_345 * gpu, ..FakeSettings::default() }
}

fn kill(agent: &mut Child) {
    agent.kill().unwrap();
    agent.wait().unwrap();
}

fn wait(agent: &mut Child, longest: Duration) -> Option<std::process::ExitStatus> {
    let deadline = Instant::now() + longest;
    loop {
        if let Some(status) = agent.try_wait().unwrap() {
            return Some(status);
        }
        if Instant::now() >= deadline {
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// `cargo xtask chaos agent-killed` does so at any time, again while it puts back, and without the mitigation.
#[test]
fn killed_before_and_after_each_call_of_a_setting_the_next_start_puts_everything_back() {
    let setup = Setup::new();
    (0..4).for_each(|gpu| setup.fake.change(gpu, before(gpu)));
    for point in 1..=16 {
        setup.wish(300 + point * 10, 1410, 50);
        setup.fake.set(&format!("9 kill_at {point}\n"));
        let mut agent = setup.agent("run").spawn().unwrap();
        let status = wait(&mut agent, Duration::from_mins(2)).expect("it comes to each of the calls");
        assert_eq!(status.signal(), Some(9), "point {point}");
        setup.fake.set("");
        assert!(setup.records() > 0, "point {point}: the record comes before the change");
        if point % 2 == 0 {
            let output = setup.agent("restore").output().unwrap();
            assert!(output.status.success(), "point {point}: {}", String::from_utf8_lossy(&output.stderr));
        } else {
            // The service itself, with nothing to follow.
            std::fs::remove_file(setup.path("wish.json")).unwrap();
            let mut agent = setup.agent("run").spawn().unwrap();
            let deadline = Instant::now() + Duration::from_mins(2);
            while !(setup.as_before() && setup.records() == 0) {
                assert!(Instant::now() < deadline, "point {point}: not put back by a start");
                std::thread::sleep(Duration::from_millis(5));
            }
            kill(&mut agent);
        }
        let now: Vec<_> = (0..4).map(|gpu| setup.fake.settings(gpu)).collect();
        assert!(setup.as_before(), "point {point}: {now:?}, MPS {}", setup.mps.default());
        assert_eq!(setup.records(), 0, "point {point}");
    }
}

#[test]
fn what_a_control_program_sets_after_its_agent_was_killed_is_put_back_too() {
    let setup = Setup::new();
    setup.wish(300, 1410, 50);
    let slow = setup.mps.pipe_directory().join("slow");
    std::fs::write(&slow, "").unwrap();
    let mut agent = setup.agent("run").spawn().unwrap();
    let deadline = Instant::now() + Duration::from_mins(2);
    let record = || {
        std::fs::read_dir(setup.path("state"))
            .is_ok_and(|files| files.flatten().any(|file| file.file_name().to_string_lossy().starts_with("mps")))
    };
    while !setup.mps.pipe_directory().join("waits").exists() {
        assert!(Instant::now() < deadline, "the program gets its intent");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(record(), "the record comes before the change");
    kill(&mut agent);
    assert_eq!(setup.mps.default().parse(), Ok(100.0), "it is slow");
    let restore = setup.agent("restore").spawn().unwrap();
    // By then it usually waits for the program.
    std::thread::sleep(Duration::from_millis(500));
    std::fs::remove_file(&slow).unwrap();
    let output = restore.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(setup.mps.set_defaults(), ["50", "100"], "the program, then what puts back");
    assert_eq!((setup.mps.default().parse(), setup.records()), (Ok(100.0), 0));
}

#[test]
fn sigterm_puts_back_and_ends_well() {
    let setup = Setup::new();
    setup.wish(300, 1410, 50);
    let mut agent = setup.agent("run").spawn().unwrap();
    let deadline = Instant::now() + Duration::from_mins(2);
    let held = FakeSettings { power_milliwatts: 300_000, lock_mhz: 1410, ..FakeSettings::default() };
    while !((0..4).all(|gpu| setup.fake.settings(gpu) == held) && setup.mps.default() == "50") {
        assert!(Instant::now() < deadline && agent.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(5));
    }
    let shown = setup.agent("show").output().unwrap();
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.status.success() && text.lines().count() == 9, "four GPUs and five records: {text}");
    let second = setup.agent("restore").output().unwrap();
    let complaint = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success() && complaint.contains("another agent has the state folder: stop it first"), "{complaint}");
    let pid = rustix::process::Pid::from_child(&agent);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let status = wait(&mut agent, Duration::from_mins(2)).expect("it ends");
    assert!(status.success(), "{status:?}");
    assert!((0..4).all(|gpu| setup.fake.settings(gpu) == FakeSettings::default()));
    assert_eq!((setup.mps.default().as_str(), setup.records()), ("100", 0));
}

#[test]
fn errors_name_the_remedy() {
    let setup = Setup::new();
    let run = |variable: &str, value: &str| {
        let output = setup.agent("run").env(variable, value).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let error = run("EADT_AGENT__LIBRARY_PATH", "/nowhere/libnvidia-ml.so");
    assert!(error.contains("install the NVIDIA driver"), "{error}");
    let error = run("EADT_AGENT__CHEK_SECONDS", "1");
    assert!(error.contains("chek_seconds"), "{error}");
    let mut bare = Command::new(env!("CARGO_BIN_EXE_eadt-agent"));
    let output = bare.env_remove("KAFKA_BROKERS").output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("nothing to follow: give --kafka BROKERS"), "{error}");
}
