//! `eadt doctor`: checks everything that a start would fail by, reports what is wrong and what to do.
//!
//! It changes nothing but this: on Kafka a heartbeat is appended and read back, to compare clocks, if the user may; a
//! temporary file is made in each folder that is written to; and a transactional id ending in `doctor` is used.

mod archive;
mod clock;
mod local;
mod log;
mod partitions;

use eadt_service::redact::SecretRedactor;
use serde::Serialize;

use crate::cli::DoctorArgs;
use crate::rights::AclRole;
use crate::settings::{ProgramSettings, SettingsError};

/// Result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckStatus {
    Ok,
    /// Nothing fails now, but a user should know.
    Notice,
    Wrong,
    /// Could not be checked; `about` gives the reason.
    Unchecked,
}

/// One fact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub check: &'static str,
    pub state: CheckStatus,
    pub about: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// Findings so far.
#[derive(Debug, Default)]
pub struct Findings(Vec<Finding>);

impl Findings {
    fn add(&mut self, check: &'static str, state: CheckStatus, about: impl Into<String>, remedy: Option<&str>) {
        self.0.push(Finding { check, state, about: about.into(), remedy: remedy.map(str::to_owned) });
    }

    fn ok(&mut self, check: &'static str, about: impl Into<String>) {
        self.add(check, CheckStatus::Ok, about, None);
    }

    fn notice(&mut self, check: &'static str, about: impl Into<String>, remedy: &str) {
        self.add(check, CheckStatus::Notice, about, Some(remedy));
    }

    fn wrong(&mut self, check: &'static str, about: impl Into<String>, remedy: &str) {
        self.add(check, CheckStatus::Wrong, about, Some(remedy));
    }

    fn unchecked(&mut self, check: &'static str, about: impl Into<String>) {
        self.add(check, CheckStatus::Unchecked, about, None);
    }

    /// Sorts faults first, then checks that could not be made, notices, and what is well. Within each, the order of the checks
    /// stays, in which a cause comes before its effects.
    fn sort(&mut self) {
        self.0.sort_by_key(|finding| match finding.state {
            CheckStatus::Wrong => 0,
            CheckStatus::Unchecked => 1,
            CheckStatus::Notice => 2,
            CheckStatus::Ok => 3,
        });
    }

    fn wrong_count(&self) -> usize {
        self.0.iter().filter(|finding| finding.state == CheckStatus::Wrong).count()
    }
}

/// Settings that cannot be loaded are a finding, too, and the only one. Errors come first, each cause before its consequences.
pub fn run(args: &DoctorArgs, settings: Result<ProgramSettings, SettingsError>, secrets: &SecretRedactor) -> anyhow::Result<()> {
    let mut findings = Findings::default();
    match settings {
        Ok(settings) => examine(&args.parts, &settings, &mut findings),
        Err(error) => findings.wrong("settings", error.to_string(), "correct it; `eadt config reference` has every key"),
    }
    let wrong = findings.wrong_count();
    findings.sort();
    let text = if args.json {
        format!("{}\n", serde_json::json!({"healthy": wrong == 0, "findings": findings.0}))
    } else {
        text(&findings.0)
    };
    crate::output::print(&secrets.redact(&text))?;
    match wrong {
        0 => Ok(()),
        1 => anyhow::bail!("1 of {} checks found something wrong: the first line has it, and what to do", findings.0.len()),
        _ => anyhow::bail!("{wrong} of {} checks failed: fix the first, then run it again", findings.0.len()),
    }
}

fn examine(parts: &[AclRole], settings: &ProgramSettings, findings: &mut Findings) {
    local::settings(settings, findings);
    local::secrets(settings, findings);
    local::progress_files(settings, findings);
    local::folders(settings, findings);
    local::disk(settings, findings);
    let on_kafka = !settings.bus.brokers.is_empty();
    let bus = if on_kafka { log::kafka(parts, settings, findings) } else { log::embedded(settings, findings) };
    if bus.is_some() || !on_kafka {
        archive::check_archive(settings, bus.as_deref(), findings);
    }
}

fn text(findings: &[Finding]) -> String {
    use std::fmt::Write;
    let mut text = String::new();
    let wide = findings.iter().map(|finding| finding.check.len()).max().unwrap_or(0);
    for Finding { check, state, about, remedy } in findings {
        let state = match state {
            CheckStatus::Ok => "ok",
            CheckStatus::Notice => "notice",
            CheckStatus::Wrong => "WRONG",
            CheckStatus::Unchecked => "unchecked",
        };
        writeln!(text, "{check:wide$}  {state:9}  {about}").expect("String");
        if let Some(remedy) = remedy {
            writeln!(text, "{:wide$}  {:9}  → {remedy}", "", "").expect("String");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_shown_with_their_remedies_below_them() {
        let mut findings = Findings::default();
        findings.ok("settings", "as they should be");
        findings.wrong("disk", "3 MiB are free", "free some");
        findings.unchecked("clock", "may not be asked");
        let expected = "settings  ok         as they should be\n\
                        disk      WRONG      3 MiB are free\n                     → free some\n\
                        clock     unchecked  may not be asked\n";
        assert_eq!(text(&findings.0), expected);
        assert_eq!(findings.wrong_count(), 1);
        let json = serde_json::to_value(&findings.0).unwrap();
        assert_eq!(
            json[1],
            serde_json::json!({"check": "disk", "state": "wrong", "about": "3 MiB are free", "remedy": "free some"})
        );
    }

    #[test]
    fn what_is_wrong_comes_first_each_cause_before_what_follows() {
        let mut findings = Findings::default();
        findings.ok("settings", "as they should be");
        findings.wrong("broker", "away", "start it");
        findings.notice("disk", "little", "free some");
        findings.wrong("topics", "none", "apply");
        findings.unchecked("clock", "needs the topics");
        findings.sort();
        let checks: Vec<&str> = findings.0.iter().map(|finding| finding.check).collect();
        assert_eq!(checks, ["broker", "topics", "clock", "disk", "settings"]);
    }

    #[test]
    fn a_secret_in_a_setting_is_shown_by_no_finding() {
        const MARK: &str = "Mark3d-s3cret";
        let url = format!("https://user:{MARK}@host:1/x?sig={MARK}");
        for pairs in [
            &[("EADT_ARCHIVER__LOCATION", format!("s3://key:{MARK}@bucket/p"))][..],
            &[("EADT_ARCHIVER__LOCATION", format!("nowhere://{MARK}@bucket/p"))],
            &[("EADT_BUS__DATA_DIR", url.clone())],
            &[("EADT_BUS__SECURITY__CA_FILE", url.clone()), ("EADT_BUS__SECURITY__PASSWORD", MARK.to_owned())],
            &[("EADT_BUS__SECURITY__USERNAME", "u".to_owned()), ("EADT_BUS__SECURITY__PASSWORD", MARK.to_owned())],
            &[
                ("KAFKA_BROKERS", "k:1".to_owned()),
                ("EADT_BUS__PROPERTIES__GROUP__ID", "x".to_owned()),
                ("EADT_BUS__PROPERTIES__SASL__PASSWORD", MARK.to_owned()),
            ],
            &[("KAFKA_BROKERS", "k:1".to_owned()), ("EADT_BUS__PROPERTIES__NO__SUCH__PASSWORD", MARK.to_owned())],
            &[("KAFKA_BROKERS", "k:1".to_owned()), ("EADT_BUS__PROPERTIES__NO__SUCH__TOKEN", MARK.to_owned())],
            &[("KAFKA_BROKERS", "k:1".to_owned()), ("EADT_BUS__PROPERTIES__SASL__PASWORD", MARK.to_owned())],
            &[("KAFKA_BROKERS", "k:1".to_owned()), ("EADT_BUS__PROPERTIES__MY__OWN", MARK.to_owned())],
            &[("EADT_COLLECTOR__PROGRESS__TOKENS_FILE", url.clone()), ("EADT_COLLECTOR__PROGRESS__KEY", url.clone())],
            &[("EADT_BUS__PROPERTIES", MARK.to_owned())],
        ] {
            let variables: crate::settings::EnvVariables =
                pairs.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
            let secrets = crate::settings::secrets(&variables);
            let mut findings = Findings::default();
            match crate::settings::load(None, &variables, &[]) {
                Ok(settings) => examine(&[], &settings, &mut findings),
                Err(error) => findings.wrong("settings", error.to_string(), "correct it"),
            }
            let shown = secrets.redact(&text(&findings.0)).into_owned();
            assert!(!findings.0.is_empty() && !shown.contains(MARK), "{pairs:?}: {shown}");
        }
    }
}
