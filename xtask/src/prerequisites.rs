//! Programs that the full test run needs beside Rust, and how to install them.

use anyhow::bail;

use crate::process;

/// Facts about this machine.
pub trait Machine {
    /// Returns the output of a program that ends with status 0; `None` if it is missing or fails.
    fn output(&self, program: &str, arguments: &[&str]) -> Option<String>;
    /// `/etc/os-release`, empty if there is none.
    fn os_release(&self) -> String;
}

/// This machine.
#[derive(Debug)]
pub struct Here;

impl Machine for Here {
    fn output(&self, program: &str, arguments: &[&str]) -> Option<String> {
        process::output(program, arguments)
    }

    fn os_release(&self) -> String {
        std::fs::read_to_string("/etc/os-release").unwrap_or_default()
    }
}

/// Something that is not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// The missing program, and its use.
    pub what: String,
    /// Debian and Ubuntu packages that bring it.
    pub packages: Vec<&'static str>,
}

/// Oldest Java that Apache Kafka 4 runs on.
const JAVA: u32 = 17;

/// Returns everything that the full run needs and this machine lacks.
pub fn missing(machine: &impl Machine) -> Vec<Missing> {
    let mut missing = Vec::new();
    let mut need = |there: bool, what: String, packages: &[&'static str]| {
        if !there {
            missing.push(Missing { what, packages: packages.to_vec() });
        }
    };
    let has = |program: &str, arguments: &[&str]| machine.output(program, arguments).is_some();
    let compilers = has("cc", &["--version"]) && has("c++", &["--version"]);
    need(compilers, "a C and a C++ compiler (cc, c++; for librdkafka and zstd)".to_owned(), &["gcc", "g++", "libc6-dev"]);
    need(has("make", &["--version"]), "make (for librdkafka)".to_owned(), &["make"]);
    // Kafka's TLS (docs/adr/0003). If there is none for developers, it is built from source, which takes two minutes and perl;
    // Debian's smallest perl lacks modules that its configuration needs.
    let openssl = has("pkg-config", &["--exists", "openssl >= 1.1.1"]);
    let perl = has("perl", &["-MFindBin", "-MIPC::Cmd", "-MFile::Compare", "-e", "1"]);
    let what = "OpenSSL for developers, or perl, which builds it (for the tests of a secured Kafka)";
    need(openssl || perl, what.to_owned(), &["libssl-dev", "pkg-config"]);
    let java = machine.output("java", &["-version"]).and_then(|text| java_major(&text));
    let found = java.map_or_else(|| "none found".to_owned(), |major| format!("found {major}"));
    let package = java_package(&machine.os_release());
    need(java.is_some_and(|major| major >= JAVA), format!("Java {JAVA} or newer ({found}; for Apache Kafka)"), &[package]);
    need(has("mvn", &["--version"]), "Maven (mvn; fetches Apache Kafka)".to_owned(), &["maven"]);
    let prometheus = has("prometheus", &["--version"]) && has("promtool", &["--version"]);
    need(prometheus, "Prometheus with promtool (for the dashboards and alerts)".to_owned(), &["prometheus"]);
    let python = has("python3", &["-c", "import venv, ensurepip"]) && has("python3", &["-m", "pip", "--version"]);
    // The Kubernetes control plane is built with Go, which Python's index has if the machine's is missing or too old.
    need(
        python,
        "Python 3 with venv and pip (for the readers of the archive, and to fetch Go, kubectl and helm)".to_owned(),
        &["python3", "python3-venv", "python3-pip"],
    );
    missing
}

fn java_major(text: &str) -> Option<u32> {
    let version = text.split('"').nth(1)?;
    let mut numbers = version.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok());
    match numbers.next()? {
        // Until Java 8 versions were written 1.8.0.
        1 => numbers.next(),
        major => Some(major),
    }
}

/// Returns the package of a Java that is new enough, by distribution; the default one is too old on Ubuntu 22.04.
fn java_package(os_release: &str) -> &'static str {
    let value = |name: &str| {
        let line = os_release.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        line.unwrap_or_default().trim_matches('"').to_owned()
    };
    let release = value("VERSION_ID").split('.').next().and_then(|major| major.parse::<u32>().ok());
    match (value("ID").as_str(), release) {
        ("debian", Some(..=12)) | ("ubuntu", Some(..=24)) => "openjdk-17-jre-headless",
        _ => "default-jre-headless",
    }
}

/// Returns the commands that install the missing tools, each as its words.
pub fn install_commands(missing: &[Missing], root: bool) -> Vec<Vec<String>> {
    let packages = missing.iter().flat_map(|missing| missing.packages.iter().copied());
    let sudo = (!root).then_some("sudo");
    let words = |words: &[&str]| sudo.into_iter().chain(words.iter().copied()).map(str::to_owned).collect::<Vec<_>>();
    let mut install = words(&["apt-get", "install", "-y", "--no-install-recommends"]);
    install.extend(packages.map(str::to_owned));
    vec![words(&["apt-get", "update"]), install]
}

/// Makes sure that everything is there; installs it if that is allowed and apt-get is the package manager.
pub fn ensure(install: bool) -> anyhow::Result<()> {
    let lacking = missing(&Here);
    if lacking.is_empty() {
        return Ok(());
    }
    let list: Vec<String> = lacking.iter().map(|missing| format!("  {}", missing.what)).collect();
    let list = list.join("\n");
    let root = process::output("id", &["-u"]).is_some_and(|id| id.trim() == "0");
    let commands = install_commands(&lacking, root);
    let shown = commands.iter().map(|words| words.join(" ")).collect::<Vec<_>>().join(" && ");
    if process::output("apt-get", &["--version"]).is_none() {
        bail!("this machine lacks\n{list}\nand has no apt-get; install them with its package manager (on Debian: {shown})");
    }
    if !install {
        bail!("this machine lacks\n{list}\ninstall them with\n  {shown}\nor let `cargo xtask test --install` do it");
    }
    println!("installing what is missing:\n{list}");
    for words in commands {
        let mut command = std::process::Command::new(&words[0]);
        process::run(command.args(&words[1..]).env("DEBIAN_FRONTEND", "noninteractive"))?;
    }
    let still = missing(&Here);
    if !still.is_empty() {
        let list: Vec<String> = still.into_iter().map(|missing| missing.what).collect();
        bail!("installed, but still missing: {}", list.join("; "));
    }
    Ok(())
}

/// Programs of Chromium, by distribution.
const BROWSERS: [&str; 2] = ["chromium", "chromium-browser"];

/// Returns the packages of the browser's tests that this machine lacks. Node of another source than the distribution brings its
/// own npm, and the distribution's npm cannot be installed beside it.
fn browser_packages(machine: &dyn Machine) -> Vec<&'static str> {
    let has = |program: &str| machine.output(program, &["--version"]).is_some();
    let lacking = [("chromium", BROWSERS.iter().any(|name| has(name))), ("nodejs", has("node")), ("npm", has("npm"))];
    lacking.into_iter().filter(|(_, is_there)| !is_there).map(|(package, _)| package).collect()
}

/// Returns the browser for the tests of the web page; `None`, after a printed line, if it or Node is missing and may not be
/// installed.
pub fn browser(install: bool) -> anyhow::Result<Option<String>> {
    let found = || BROWSERS.iter().find(|name| process::output(name, &["--version"]).is_some()).map(ToString::to_string);
    if let Some(browser) = found().filter(|_| crate::web::has_node()) {
        return Ok(Some(browser));
    }
    let lacking = [Missing { what: "Node and Chromium (for the web page)".to_owned(), packages: browser_packages(&Here) }];
    let root = process::output("id", &["-u"]).is_some_and(|id| id.trim() == "0");
    let commands = install_commands(&lacking, root);
    if !install || process::output("apt-get", &["--version"]).is_none() {
        let shown = commands.iter().map(|words| words.join(" ")).collect::<Vec<_>>().join(" && ");
        println!("skipped: the tests of the web page; this machine lacks Chromium or Node. On Debian: {shown}");
        return Ok(None);
    }
    for words in commands {
        let mut command = std::process::Command::new(&words[0]);
        process::run(command.args(&words[1..]).env("DEBIAN_FRONTEND", "noninteractive"))?;
    }
    found().map_or_else(|| bail!("Chromium was installed, and does not start"), |browser| Ok(Some(browser)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    struct Fake(BTreeMap<&'static str, &'static str>, &'static str);

    impl Machine for Fake {
        fn output(&self, program: &str, _: &[&str]) -> Option<String> {
            self.0.get(program).map(ToString::to_string)
        }

        fn os_release(&self) -> String {
            self.1.to_owned()
        }
    }

    const BOOKWORM: &str = "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nVERSION_ID=\"12\"\nID=debian\n";

    fn all() -> BTreeMap<&'static str, &'static str> {
        let java = "openjdk version \"17.0.15\" 2025-04-15";
        [
            ("cc", ""),
            ("c++", ""),
            ("make", ""),
            ("pkg-config", ""),
            ("java", java),
            ("mvn", ""),
            ("python3", ""),
            ("prometheus", ""),
            ("promtool", ""),
        ]
        .into()
    }

    #[test]
    fn a_complete_machine_lacks_nothing() {
        assert_eq!(missing(&Fake(all(), BOOKWORM)), []);
    }

    #[test]
    fn each_part_is_noticed_and_brings_its_package() {
        for (program, package) in [
            ("cc", "gcc"),
            ("c++", "g++"),
            ("make", "make"),
            ("pkg-config", "libssl-dev"),
            ("java", "openjdk-17-jre-headless"),
            ("mvn", "maven"),
            ("python3", "python3-venv"),
            ("prometheus", "prometheus"),
            ("promtool", "prometheus"),
        ] {
            let mut machine = all();
            machine.remove(program);
            let lacking = missing(&Fake(machine, BOOKWORM));
            assert_eq!(lacking.len(), 1, "{program}");
            assert!(lacking[0].packages.contains(&package), "{program}: {lacking:?}");
        }
    }

    #[test]
    fn only_what_the_browser_lacks_is_installed() {
        let packages = |programs: &[&'static str]| {
            browser_packages(&Fake(programs.iter().map(|program| (*program, "")).collect(), BOOKWORM))
        };
        assert_eq!(packages(&[]), ["chromium", "nodejs", "npm"]);
        assert_eq!(packages(&["node", "npm"]), ["chromium"], "npm would conflict with a Node that brings its own");
        assert_eq!(packages(&["chromium-browser", "node"]), ["npm"]);
    }

    #[test]
    fn an_old_java_is_not_enough() {
        let mut machine = all();
        machine.insert("java", "openjdk version \"11.0.22\" 2024-01-16");
        let lacking = missing(&Fake(machine, "ID=ubuntu\nVERSION_ID=\"22.04\"\n"));
        assert_eq!(lacking[0].what, "Java 17 or newer (found 11; for Apache Kafka)");
        assert_eq!(lacking[0].packages, ["openjdk-17-jre-headless"]);
        assert_eq!(java_major("java version \"1.8.0_402\""), Some(8));
        assert_eq!(java_major("openjdk version \"25\" 2025-09-16"), Some(25));
        assert_eq!(java_major("no java here"), None);
    }

    #[test]
    fn newer_distributions_have_no_java_17() {
        assert_eq!(java_package("ID=debian\nVERSION_ID=\"13\"\n"), "default-jre-headless");
        assert_eq!(java_package("ID=ubuntu\nVERSION_ID=\"24.04\"\n"), "openjdk-17-jre-headless");
        assert_eq!(java_package(""), "default-jre-headless");
    }

    #[test]
    fn commands_are_complete_and_use_sudo_only_where_needed() {
        let lacking = missing(&Fake(BTreeMap::new(), BOOKWORM));
        let shown = |root| install_commands(&lacking, root).iter().map(|words| words.join(" ")).collect::<Vec<_>>();
        assert_eq!(
            shown(true),
            [
                "apt-get update",
                "apt-get install -y --no-install-recommends gcc g++ libc6-dev make libssl-dev pkg-config openjdk-17-jre-headless maven prometheus python3 \
                 python3-venv python3-pip"
            ]
        );
        assert!(shown(false).iter().all(|command| command.starts_with("sudo apt-get ")));
    }
}
