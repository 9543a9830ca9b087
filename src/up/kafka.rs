//! Choice of the Kafka that `up` joins: only the one that its command line names, with topics and groups of its own.
//!
//! A variable that services on this machine need must not turn a look at the program into a member of their groups.

use crate::cli::UpArgs;
use crate::settings::{EnvVariables, PREFIX_BYTES, ProgramSettings};
use crate::usage_error;

/// Returns whether a variable names a Kafka.
fn names_brokers(variable: &str) -> bool {
    variable == "KAFKA_BROKERS" || variable.eq_ignore_ascii_case("EADT_BUS__BROKERS")
}

/// Takes the variables that name a Kafka out, and returns the line that reports it, unless a flag names one.
pub fn take_brokers(variables: &mut EnvVariables, flag: Option<&str>) -> Option<String> {
    let mut names: Vec<String> = variables.keys().filter(|name| names_brokers(name)).cloned().collect();
    names.sort_unstable();
    for name in &names {
        variables.remove(name);
    }
    if names.is_empty() || flag.is_some() {
        return None;
    }
    Some(format!("{} is set, and up joins a Kafka only by --kafka: the embedded log is used", names.join(" and ")))
}

/// Returns the prefix of this host's own topics: `up.node-1.`.
fn own_prefix(host: &str) -> String {
    let name: String = host.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '-' }).collect();
    let name = name.trim_matches('-');
    let name = if name.is_empty() { "host" } else { name };
    format!("up.{}.", &name[..name.len().min(PREFIX_BYTES - "up..".len())])
}

/// Returns the prefix of the topics on Kafka; `None` on the embedded log.
pub fn topic_prefix(args: &UpArgs, flag: Option<&str>, host: &str) -> Option<String> {
    flag.map(|_| args.topic_prefix.clone().unwrap_or_else(|| own_prefix(host)))
}

/// Confines the settings by the command line. Returns a line that names the destination of `up`, or the ignored settings.
pub fn confine(settings: &mut ProgramSettings, args: &UpArgs, flag: Option<&str>) -> anyhow::Result<Option<String>> {
    if flag.is_none() {
        let options = [("--topic-prefix", &args.topic_prefix), ("--group-prefix", &args.group_prefix)];
        if let Some((name, _)) = options.iter().find(|(_, prefix)| prefix.is_some()) {
            return Err(usage_error::impossible(format_args!(
                "{name} is of a Kafka: give --kafka BROKERS, too, or leave it out"
            )));
        }
        let ignored = !settings.bus.brokers.is_empty();
        settings.bus.brokers.clear();
        let line = "bus.brokers is set, and up joins a Kafka only by --kafka: the embedded log is used";
        return Ok(ignored.then(|| line.to_owned()));
    }
    let topics = settings.topics.prefix.clone();
    let groups = args.group_prefix.clone().unwrap_or_else(|| topics.clone());
    let ProgramSettings { processor, actuator, archiver, simulator, .. } = settings;
    for name in [
        &mut processor.group,
        &mut processor.instance,
        &mut actuator.group,
        &mut actuator.instance,
        &mut archiver.group,
        &mut archiver.instance,
        &mut simulator.group,
        &mut simulator.instance,
    ] {
        name.insert_str(0, &groups);
    }
    crate::settings::kafka_names::check_names(settings).map_err(anyhow::Error::msg)?;
    let events = if args.gpus == crate::cli::TelemetrySource::Simulated { "simulated" } else { "measured" };
    let members = if groups.is_empty() { "as the groups of the services there".to_owned() } else { format!("groups {groups}*") };
    Ok(Some(format!("up writes {events} events to Kafka at {}: topics {topics}*, {members}", settings.bus.brokers)))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, CliCommand};
    use crate::settings;

    /// Returns the settings that follow from a command line and variables, and the printed lines.
    fn settled(arguments: &[&str], variables: &[(&str, &str)]) -> (ProgramSettings, Vec<String>) {
        let mut variables: EnvVariables =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let cli = Cli::try_parse_from(["eadt", "up"].iter().chain(arguments)).unwrap();
        let CliCommand::Up(args) = &cli.command else { panic!("up") };
        let flag = cli.kafka.as_deref();
        let mut lines: Vec<String> = take_brokers(&mut variables, flag).into_iter().collect();
        let mut overrides: Vec<(&str, toml::Value)> = Vec::new();
        overrides.extend(flag.map(|brokers| ("bus.brokers", brokers.into())));
        overrides.extend(topic_prefix(args, flag, "node-1.lab").map(|prefix| ("topics.prefix", prefix.into())));
        let mut settings = settings::load(None, &variables, &overrides).unwrap();
        lines.extend(confine(&mut settings, args, flag).unwrap());
        (settings, lines)
    }

    #[test]
    fn no_variable_makes_up_join_a_kafka() {
        for variables in [
            &[("KAFKA_BROKERS", "prod:9092")][..],
            &[("EADT_BUS__BROKERS", "prod:9092")],
            &[("EADT_bus__brokers", "prod:9092")],
            &[("KAFKA_BROKERS", "prod:9092"), ("EADT_BUS__BROKERS", "prod:9092"), ("EADT_TOPICS__PREFIX", "prod.")],
            &[("KAFKA_BROKERS", "")],
        ] {
            let (settings, lines) = settled(&[], variables);
            assert_eq!(settings.bus.brokers, "", "{variables:?}");
            assert!(lines.len() == 1 && lines[0].contains(variables[0].0) && lines[0].contains("--kafka"), "{lines:?}");
            assert_eq!(settings.processor.group, ProgramSettings::default().processor.group);
        }
        assert!(settled(&[], &[("EADT_BUS__DATA_DIR", "/d")]).1.is_empty());
    }

    #[test]
    fn on_the_kafka_of_its_command_line_up_has_topics_and_groups_of_its_own() {
        let production =
            [("KAFKA_BROKERS", "prod:9092"), ("EADT_TOPICS__PREFIX", "eadt."), ("EADT_PROCESSOR__GROUP", "processor")];
        let (settings, lines) = settled(&["--kafka", "test:9092"], &production);
        assert_eq!(settings.bus.brokers, "test:9092");
        let own = "up.node-1-lab.";
        let ProgramSettings { topics, processor, actuator, archiver, simulator, .. } = &settings;
        assert_eq!([&*topics.prefix, &processor.prefix, &actuator.prefix, &simulator.prefix], [own; 4]);
        for name in
            [&processor.group, &processor.instance, &actuator.group, &actuator.instance, &archiver.group, &archiver.instance]
        {
            assert!(name.starts_with(own), "{name}");
        }
        assert!(simulator.group.starts_with(own) && simulator.instance.starts_with(own));
        assert_eq!(lines, ["up writes simulated events to Kafka at test:9092: topics up.node-1-lab.*, groups up.node-1-lab.*"]);

        // Set otherwise: both, or one.
        let (settings, lines) = settled(&["--kafka", "k:1", "--topic-prefix", "lab.", "--group-prefix", ""], &[]);
        assert_eq!(
            (&*settings.topics.prefix, &*settings.processor.group),
            ("lab.", &*ProgramSettings::default().processor.group)
        );
        assert!(lines[0].contains("as the groups of the services there"), "{lines:?}");
        let (settings, _) = settled(&["--kafka", "k:1", "--topic-prefix", "lab."], &[]);
        assert!(settings.archiver.group.starts_with("lab."));
    }

    #[test]
    fn flags_of_kafka_need_one_and_names_are_names() {
        for flag in ["--topic-prefix", "--group-prefix"] {
            let cli = Cli::try_parse_from(["eadt", "up", flag, "x."]).unwrap();
            let CliCommand::Up(args) = &cli.command else { panic!("up") };
            let refused = confine(&mut ProgramSettings::default(), args, None).unwrap_err().to_string();
            assert!(refused.starts_with(flag) && refused.contains("--kafka"), "{refused}");
        }
        let refused = Cli::try_parse_from(["eadt", "up", "--kafka", "k:1", "--group-prefix", "a b"]).unwrap_err().to_string();
        assert!(refused.contains("--group-prefix") && refused.contains("letters, digits"), "{refused}");
        for (host, prefix) in
            [("node-1", "up.node-1."), ("node_1.lab", "up.node-1-lab."), ("", "up.host."), ("Größe", "up.Gr--e.")]
        {
            assert_eq!(own_prefix(host), prefix);
        }
        assert!(own_prefix(&"x".repeat(300)).len() <= PREFIX_BYTES);
    }
}
