//! One Apache Kafka broker (broker and controller in one process), fetched by Maven.

pub mod secured;

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use eadt_bus::kafka::FetchPath;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use crate::ports::{free_port_list, free_ports};
use crate::{INSTALL, cache};

static CHOSEN_PATH: OnceLock<FetchPath> = OnceLock::new();

/// Returns by what the tests read from Kafka: what [`choose_fetch_path`] chose, else the variable of `bus.fetch`, so that each
/// test runs on both paths.
pub fn fetch_path() -> FetchPath {
    *CHOSEN_PATH.get_or_init(|| match std::env::var("EADT_BUS__FETCH") {
        Ok(name) => name.parse().unwrap_or_else(|error| panic!("EADT_BUS__FETCH: {error}")),
        Err(_) => FetchPath::default(),
    })
}

/// Chooses for this process by what it reads. Fails if something was read by the other path before.
pub fn choose_fetch_path(path: FetchPath) -> Result<()> {
    ensure!(*CHOSEN_PATH.get_or_init(|| path) == path, "this process reads by {:?} already", fetch_path());
    Ok(())
}

const POM: &str = include_str!("../kafka/pom.xml");
const SERVER: &str = include_str!("../kafka/server.properties");
/// Small and quick to start.
const SMALL: [&str; 7] = [
    "-Xms64m",
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:MaxDirectMemorySize=128m",
    "-XX:-UsePerfData",
    "-Djava.awt.headless=true",
];
/// As fast as on a machine of its own.
const FAST: [&str; 5] = ["-Xms1g", "-Xmx1g", "-XX:+UseParallelGC", "-XX:-UsePerfData", "-Djava.awt.headless=true"];
const LOGGING: [&str; 3] = [
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=info",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    // Logs granted access, too, if there are access lists.
    "-Dorg.slf4j.simpleLogger.log.kafka.authorizer.logger=debug",
];
const READY_WITHIN: Duration = Duration::from_mins(5);

/// Ends the broker and removes its data once standard input closes, which it does however the parent ends.
const KEEPER: &str = r#"
dir=$1 log=$2; shift 2
"$@" </dev/null >>"$log" 2>&1 &
pid=$!
echo $pid >"$dir/pid.new" && mv "$dir/pid.new" "$dir/pid"
cat >/dev/null
kill -9 $pid 2>/dev/null
wait $pid 2>/dev/null
[ -e "$dir/keep" ] || rm -rf "$dir"
"#;

/// A running broker. Dropping it ends it and removes its data; its log stays in the cache folder.
#[derive(Debug)]
pub struct Kafka {
    dir: PathBuf,
    log: PathBuf,
    classes: Classes,
    jvm: &'static [&'static str],
    port: u16,
    keeper: Option<Keeper>,
}

#[derive(Debug)]
struct Keeper {
    process: Child,
    // Held open for as long as the broker is wanted.
    stdin: Option<ChildStdin>,
    broker: Pid,
}

/// Kafka's classes.
#[derive(Debug, Clone)]
struct Classes {
    jars: PathBuf,
    /// The JVM's option for the file that has them as they are in memory. Reading, checking and linking them is a third of what a start
    /// costs otherwise. A JVM that cannot use it, finding it empty, goes on without.
    archive: String,
}

impl Classes {
    /// The jars are fetched and the archive is made if they are not there yet.
    fn fetch() -> Result<Self> {
        let jars = fetch_jars()?;
        // Only the JVM that made it reads it.
        let archive = cache::once(&format!("kafka-{}-java-{}-classes.jsa", version(), java_build()?), |unfinished| {
            let made = format!("-XX:ArchiveClassesAtExit={}", unfinished.display());
            let classes = Self { jars: jars.clone(), archive: made };
            Kafka::start_of(&classes, &SMALL, &[])?.end(Signal::TERM, READY_WITHIN)?;
            if !unfinished.exists() {
                // A JVM that writes none reads none.
                File::create(unfinished)?;
            }
            Ok(())
        })?;
        Ok(Self { jars, archive: format!("-XX:SharedArchiveFile={}", archive.display()) })
    }

    fn path(&self) -> String {
        format!("{}/*", self.jars.display())
    }
}

impl Kafka {
    /// Fetches the jars if they are not there yet, and starts a broker with empty data on free ports.
    pub fn start() -> Result<Self> {
        Self::start_with(&[])
    }

    /// The same with further lines for `server.properties`; `@PORT@`, `@CONTROLLER_PORT@` and `@DIR@` are filled in.
    pub fn start_with(settings: &[&str]) -> Result<Self> {
        Self::start_on(&SMALL, settings)
    }

    /// A broker to measure with: a gigabyte of heap and the whole compiler.
    pub fn start_fast(settings: &[&str]) -> Result<Self> {
        Self::start_on(&FAST, settings)
    }

    /// Several brokers of one cluster, topics of its own replicated to three of them; `settings` go to every broker.
    pub fn start_cluster(count: usize, settings: &[&str]) -> Result<Vec<Self>> {
        let classes = Classes::fetch()?;
        on_free_ports(|| Self::try_start_cluster(&classes, count, settings))
    }

    fn try_start_cluster(classes: &Classes, count: usize, settings: &[&str]) -> Result<Vec<Self>> {
        let ports = free_port_list(2 * count)?;
        let ports: Vec<[u16; 2]> = ports.chunks_exact(2).map(|pair| [pair[0], pair[1]]).collect();
        let voters: Vec<String> = (1..).zip(&ports).map(|(id, [_, port])| format!("{id}@127.0.0.1:{port}")).collect();
        let voters = format!("controller.quorum.voters={}", voters.join(","));
        let copies = count.min(3);
        let mut lines: Vec<String> = ["offsets.topic", "transaction.state.log", "share.coordinator.state.topic"]
            .map(|topic| format!("{topic}.replication.factor={copies}"))
            .into();
        lines.push(format!("transaction.state.log.min.isr={}", copies.min(2)));
        lines.extend(settings.iter().map(ToString::to_string));
        let mut brokers = Vec::new();
        for (id, ports) in (1..).zip(ports) {
            let own = format!("node.id={id}");
            let lines: Vec<&str> = lines.iter().map(String::as_str).chain([voters.as_str(), own.as_str()]).collect();
            brokers.push(Self::prepare(classes, &SMALL, &lines, &[], ports)?);
        }
        // None is ready before most of them run.
        let begun = brokers.iter_mut().map(Self::spawn).collect::<Result<Vec<_>>>()?;
        for (broker, begun) in brokers.iter().zip(begun) {
            broker.await_ready(begun)?;
        }
        Ok(brokers)
    }

    fn start_on(jvm: &'static [&'static str], settings: &[&str]) -> Result<Self> {
        Self::start_of(&Classes::fetch()?, jvm, settings)
    }

    fn start_of(classes: &Classes, jvm: &'static [&'static str], settings: &[&str]) -> Result<Self> {
        on_free_ports(|| Self::try_start(classes, jvm, settings, &[]))
    }

    /// `format`: further arguments for the formatting of its storage, such as users.
    fn try_start(classes: &Classes, jvm: &'static [&'static str], settings: &[&str], format: &[String]) -> Result<Self> {
        let mut kafka = Self::prepare(classes, jvm, settings, format, free_ports()?)?;
        kafka.run()?;
        Ok(kafka)
    }

    fn prepare(
        classes: &Classes,
        jvm: &'static [&'static str],
        settings: &[&str],
        format: &[String],
        [port, controller_port]: [u16; 2],
    ) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("eadt-kafka-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let dir = std::env::temp_dir().join(&name);
        fs::create_dir_all(&dir)?;
        let logs = cache::folder()?.join("kafka-logs");
        fs::create_dir_all(&logs)?;
        cache::keep_newest(&logs, 30);
        let mut properties = SERVER.to_owned();
        for line in settings {
            properties.push_str(line);
            properties.push('\n');
        }
        let properties = properties
            .replace("@PORT@", &port.to_string())
            .replace("@CONTROLLER_PORT@", &controller_port.to_string())
            .replace("@DIR@", &dir.display().to_string());
        fs::write(dir.join("server.properties"), properties)?;
        let kafka = Self { log: logs.join(format!("{name}.log")), dir, classes: classes.clone(), jvm, port, keeper: None };
        kafka.format(format)?;
        Ok(kafka)
    }

    /// `host:port` for clients.
    pub fn brokers(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Returns the path of the broker's output, which also exists after its end.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// The folder of its partitions.
    pub fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// The broker's process id, `None` while it is stopped.
    pub fn pid(&self) -> Option<i32> {
        self.keeper.as_ref().map(|keeper| keeper.broker.as_raw_nonzero().get())
    }

    /// Ends the broker in good order and keeps its data for [`Self::start_again`].
    pub fn stop(&mut self) -> Result<()> {
        self.end(Signal::TERM, Duration::from_secs(15))
    }

    /// Kills the broker (SIGKILL) and keeps its data for [`Self::start_again`].
    pub fn kill(&mut self) -> Result<()> {
        self.end(Signal::KILL, Duration::from_secs(5))
    }

    /// Stops the broker's threads where they are (SIGSTOP), or lets them go on (SIGCONT).
    pub fn freeze(&self, frozen: bool) -> Result<()> {
        let keeper = self.keeper.as_ref().context("the broker is stopped")?;
        Ok(kill_process(keeper.broker, if frozen { Signal::STOP } else { Signal::CONT })?)
    }

    /// Starts a stopped or killed broker on the same ports and data.
    pub fn start_again(&mut self) -> Result<()> {
        ensure!(self.keeper.is_none(), "the broker is running");
        self.run()
    }

    /// Returns the output of one of Kafka's own tools, by the class that its script names.
    pub fn tool(&self, class: &str, arguments: &[&str]) -> Result<String> {
        let mut java = Command::new("java");
        java.args([
            "-Xmx128m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-cp",
        ]);
        java.arg(self.classes.path()).arg(class).args(["--bootstrap-server", &self.brokers()]).args(arguments);
        let output = java.stdin(Stdio::null()).output().context("starting java")?;
        let (stdout, complaint) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        ensure!(output.status.success(), "{class} {}: {stdout}{complaint}", arguments.join(" "));
        Ok(stdout.into_owned())
    }

    /// Waits until every partition of the cluster has all its copies.
    pub fn await_copies(&self) -> Result<()> {
        const TOOL: &str = "org.apache.kafka.tools.TopicCommand";
        let begun = Instant::now();
        loop {
            let missing = self.tool(TOOL, &["--describe", "--under-replicated-partitions"])?;
            if missing.trim().is_empty() {
                return Ok(());
            }
            ensure!(begun.elapsed() < READY_WITHIN, "copies are still missing: {missing}");
        }
    }

    fn end(&mut self, signal: Signal, within: Duration) -> Result<()> {
        let Some(keeper) = self.keeper.take() else { return Ok(()) };
        fs::write(self.dir.join("keep"), "")?;
        kill_process(keeper.broker, signal).context("ending the broker")?;
        let begun = Instant::now();
        // The keeper has not waited for it yet, so the process id still is the broker's.
        while is_alive(keeper.broker) && begun.elapsed() < within {
            std::thread::sleep(Duration::from_millis(10));
        }
        drop(keeper);
        fs::remove_file(self.dir.join("keep"))?;
        Ok(())
    }

    fn format(&self, more: &[String]) -> Result<()> {
        let output = Command::new("java")
            .arg(&self.classes.archive)
            .args(["-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp"])
            .arg(self.classes.path())
            .args(["kafka.tools.StorageTool", "format", "-t", "AAAAAAAAAAAAAAAAAAAAAQ", "-c"])
            .arg(self.dir.join("server.properties"))
            .args(more)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| anyhow!(no_java(&error)))?;
        let output_text = || [output.stdout.as_slice(), &output.stderr].map(String::from_utf8_lossy).join("\n");
        ensure!(output.status.success(), "formatting the broker's storage failed: {}", output_text());
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        let begun = self.spawn()?;
        self.await_ready(begun)
    }

    /// Starts the process; where its log begins.
    fn spawn(&mut self) -> Result<u64> {
        let from = fs::metadata(&self.log).map_or(0, |meta| meta.len());
        let mut process = Command::new("sh")
            .args(["-c", KEEPER, "keeper"])
            .args([&self.dir, &self.log])
            .arg("java")
            .arg(&self.classes.archive)
            .args(self.jvm)
            .args(LOGGING)
            .arg("-cp")
            .arg(self.classes.path())
            .arg("kafka.Kafka")
            .arg(self.dir.join("server.properties"))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("starting sh")?;
        let stdin = process.stdin.take();
        let begun = Instant::now();
        let broker = loop {
            let text = fs::read_to_string(self.dir.join("pid")).unwrap_or_default();
            if let Some(pid) = text.trim().parse().ok().and_then(Pid::from_raw) {
                break pid;
            }
            ensure!(begun.elapsed() < READY_WITHIN, "sh did not start the broker");
            std::thread::sleep(Duration::from_millis(5));
        };
        fs::remove_file(self.dir.join("pid"))?;
        self.keeper = Some(Keeper { process, stdin, broker });
        Ok(from)
    }

    fn await_ready(&self, from: u64) -> Result<()> {
        let broker = self.keeper.as_ref().context("the broker is stopped")?.broker;
        let begun = Instant::now();
        loop {
            let lines = self.lines(from);
            if lines.iter().any(|line| line.contains("Kafka Server started")) {
                return Ok(());
            }
            let alive = is_alive(broker);
            if !alive || begun.elapsed() > READY_WITHIN {
                let state = if alive { "is not ready after five minutes" } else { "ended at its start" };
                let tail = lines[lines.len().saturating_sub(15)..].join("\n");
                bail!("the Kafka broker {state}; its log is {}:\n{tail}", self.log.display());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn lines(&self, from: u64) -> Vec<String> {
        use std::io::{Seek, SeekFrom};
        let Ok(mut file) = File::open(&self.log) else { return Vec::new() };
        if file.seek(SeekFrom::Start(from)).is_err() {
            return Vec::new();
        }
        BufReader::new(file).lines().map_while(Result::ok).collect()
    }
}

impl Drop for Kafka {
    fn drop(&mut self) {
        self.keeper.take();
        // The keeper has removed it, unless the broker never ran or was stopped before.
        if let Err(error) = fs::remove_dir_all(&self.dir)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            eprintln!("{} stays behind: {error}", self.dir.display());
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stdin.take();
        if let Err(error) = self.process.wait() {
            eprintln!("waiting for the broker's keeper failed: {error}");
        }
    }
}

/// Returns false for a process that has ended, even if it was not waited for yet.
fn is_alive(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    stat.map_or_else(
        |_| !Path::new("/proc/self").exists() && test_kill_process(pid).is_ok(),
        |stat| !stat.rsplit(')').next().unwrap_or_default().trim_start().starts_with('Z'),
    )
}

/// Starts something that chooses its ports; anew if another process took one of them between its choice and its use.
fn on_free_ports<T>(mut start: impl FnMut() -> Result<T>) -> Result<T> {
    let mut attempt = 1;
    loop {
        match start() {
            Err(error) if attempt < 3 && format!("{error:#}").contains("in use") => attempt += 1,
            started => return started,
        }
    }
}

/// Of the broker that is fetched.
pub fn version() -> &'static str {
    POM.split("<kafka.version>").nth(1).and_then(|rest| rest.split('<').next()).expect("the pom names a version")
}

/// The build of the installed Java, as it may be in a file's name; asked once.
fn java_build() -> Result<&'static str> {
    static BUILD: LazyLock<Result<String, String>> = LazyLock::new(|| {
        let output = Command::new("java").arg("-version").stdin(Stdio::null()).output();
        let output = output.map_err(|error| no_java(&error))?;
        // OpenJDK Runtime Environment (build 17.0.15+6-Debian-1deb12u1)
        let version_text = String::from_utf8_lossy(&output.stderr);
        let build = version_text.split("(build ").nth(1).and_then(|rest| rest.split([')', ',']).next());
        let build = build.ok_or_else(|| format!("java -version names no build: {}", version_text.trim()))?;
        Ok(build.chars().map(|c| if c.is_ascii_alphanumeric() || "+-.".contains(c) { c } else { '_' }).collect())
    });
    BUILD.as_deref().map_err(|error| anyhow!("{error}"))
}

fn no_java(error: &std::io::Error) -> String {
    format!("java does not start ({error}): {INSTALL}")
}

/// The folder with Kafka's jars, fetched by Maven if they are not there yet, with what makes its starts quicker beside it. Safe
/// to call from several processes at once.
pub fn fetch() -> Result<PathBuf> {
    Ok(Classes::fetch()?.jars)
}

fn fetch_jars() -> Result<PathBuf> {
    let cache = cache::folder()?;
    let jars = cache.join(format!("kafka-{}", version()));
    if jars.join(".complete").exists() {
        return Ok(jars);
    }
    fs::create_dir_all(&cache).with_context(|| format!("making {}", cache.display()))?;
    let lock = File::create(cache.join("kafka.lock"))?;
    lock.lock().context("waiting for another process that fetches Apache Kafka")?;
    if jars.join(".complete").exists() {
        return Ok(jars);
    }
    let pom = cache.join("kafka-pom.xml");
    fs::write(&pom, POM)?;
    let output = Command::new("mvn")
        .args(["-B", "-q", "-f"])
        .arg(&pom)
        .args(["dependency:copy-dependencies", "-DincludeScope=runtime"])
        .arg(format!("-DoutputDirectory={}", jars.display()))
        .stdin(Stdio::null())
        .output()
        .map_err(|error| anyhow!("mvn does not start ({error}), so Apache Kafka cannot be fetched: {INSTALL}"))?;
    let output_text = || [output.stdout.as_slice(), &output.stderr].map(String::from_utf8_lossy).join("\n");
    ensure!(output.status.success(), "fetching Apache Kafka {} with Maven failed: {}", version(), output_text());
    fs::write(jars.join(".complete"), "")?;
    Ok(jars)
}
