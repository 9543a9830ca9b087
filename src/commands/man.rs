//! `eadt man`: the manual pages, made from the command line's own descriptions.

use std::path::Path;

use anyhow::{Context, bail};
use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::help;
use crate::output::print_line;

/// Writes a page for each command into a folder that exists.
pub fn run(folder: &Path) -> anyhow::Result<()> {
    if !folder.is_dir() {
        bail!("{} is not a folder: create it first, or name another", folder.display());
    }
    let mut command = help::command().disable_help_subcommand(true);
    command.build();
    write_pages(&command, "", folder).with_context(|| format!("cannot write to {}", folder.display()))?;
    print_line!("the manual pages are in {0}: man -l {0}/eadt.1", folder.display());
    Ok(())
}

/// Writes the page of a command, by its words after `eadt`, and the pages of all below it.
fn write_pages(command: &Command, path: &str, folder: &Path) -> std::io::Result<()> {
    for sub in command.get_subcommands() {
        write_pages(sub, format!("{path} {}", sub.get_name()).trim_start(), folder)?;
    }
    let man = Man::new(command.clone()).date(" ").source(format!("eadt {}", help::VERSION)).manual("EADT");
    let mut text: Vec<u8> = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    synopsis(command).to_writer(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    further_sections(command, path).to_writer(&mut text)?;
    std::fs::write(folder.join(man.get_filename()), text)
}

/// Returns the synopsis: the usage lines of `--help`, which name the options that must be given, each with its value.
fn synopsis(command: &Command) -> Roff {
    let usage = command.clone().render_usage().to_string();
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    let mut page = Roff::new();
    page.control("SH", ["SYNOPSIS"]);
    for line in usage.trim_start_matches("Usage:").lines().map(str::trim) {
        let (name, rest) = line.strip_prefix(name).map_or(("", line), |rest| (name, rest));
        page.text([bold(name), roman(rest)]).control("br", []);
    }
    page
}

/// Returns the sections after the options: the commands by group, an example, the exit statuses, the version.
fn further_sections(command: &Command, path: &str) -> Roff {
    let mut page = Roff::new();
    let names: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
    if !names.is_empty() {
        page.control("SH", ["COMMANDS"]);
    }
    let ungrouped = [("", &*names)];
    let groups: &[(&str, &[&str])] = if path.is_empty() { &help::GROUPS } else { &ungrouped };
    for (title, names) in groups {
        if !title.is_empty() {
            page.control("SS", [*title]);
        }
        for sub in names.iter().filter_map(|name| command.find_subcommand(name)) {
            let about = sub.get_about().map(ToString::to_string).unwrap_or_default();
            let name = sub.get_display_name().unwrap_or_else(|| sub.get_name());
            page.control("TP", []).text([bold(format!("{name}(1)"))]).text([roman(about)]);
        }
    }
    if let Some(example) = help::example(path) {
        page.control("SH", ["EXAMPLES"]).control("nf", []).text([roman(example)]).control("fi", []);
    }
    page.control("SH", ["EXIT STATUS"]);
    for (status, meaning) in help::EXIT_STATUSES {
        page.control("TP", []).text([bold(status)]).text([roman(meaning.replace('\n', " "))]);
    }
    page.control("SH", ["VERSION"]).text([roman(help::VERSION)]);
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_has_a_page_with_its_options_and_example() {
        let dir = tempfile::tempdir().unwrap();
        run(dir.path()).unwrap();
        let page = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        for name in ["eadt.1", "eadt-up.1", "eadt-topics-apply.1", "eadt-man.1"] {
            assert!(page(name).starts_with(".ie"), "{name}");
            assert!(page(name).contains(".SH \"EXIT STATUS\"\n") && !page(name).contains("EXTRA"), "{name}: {}", page(name));
        }
        let title = page("eadt-up.1").lines().find(|line| line.starts_with(".TH")).unwrap().to_owned();
        assert_eq!(title, format!(".TH eadt-up 1 \" \" \"eadt {}\" EADT", help::VERSION));
        let up = page("eadt-up.1");
        assert!(up.contains("topic\\-prefix") && up.contains(".SH EXAMPLES\n.nf\neadt up \\-\\-speed max"), "{up}");
        let root = page("eadt.1");
        let (run_group, observe) = (root.find(".SS Run").unwrap(), root.find(".SS Observe").unwrap());
        assert!((run_group..observe).contains(&root.find("eadt\\-collector(1)").unwrap()), "{root}");
        let synopsis = |name: &str| {
            let text = page(name);
            let (_, rest) = text.split_once(".SH SYNOPSIS\n").unwrap();
            rest.split(".SH").next().unwrap().to_owned()
        };
        assert!(synopsis("eadt-up.1").contains("eadt up\\fR [OPTIONS]"), "{}", synopsis("eadt-up.1"));
        let profile = synopsis("eadt-profile.1");
        assert!(profile.contains("<KNOB>") && profile.contains("<POINTS.csv>") && !profile.contains("settle"), "{profile}");
        assert!(page("eadt-topics.1").contains("eadt\\-topics\\-apply(1)"));
        assert!(run(&dir.path().join("none")).unwrap_err().to_string().contains("is not a folder"));
    }
}
