//! Every link of a doc comment to an item leads to one. rustdoc checks this, too, but compiles every crate for it, and is part of no
//! run. This reads text only: it takes an item of the same name in the same file for the one that is meant.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Words before the name of an item.
const ITEMS: [&str; 10] = ["fn", "struct", "enum", "trait", "type", "const", "static", "mod", "union", "macro_rules!"];
const TYPES: [&str; 4] = ["struct", "enum", "trait", "type"];
/// Names that need no import.
const PRELUDE: [&str; 12] =
    ["Box", "Clone", "Default", "Drop", "Err", "Iterator", "None", "Ok", "Option", "Result", "String", "Vec"];

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns the texts before and after each place of this word or these words.
fn places<'a>(text: &'a str, words: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
    let around = text.match_indices(words).map(move |(at, found)| (&text[..at], &text[at + found.len()..]));
    around.filter(|(before, after)| !before.ends_with(is_word) && !after.starts_with(is_word))
}

fn has(text: &str, words: &str) -> bool {
    places(text, words).next().is_some()
}

fn has_one(text: &str, keywords: &[&str], name: &str) -> bool {
    keywords.iter().any(|keyword| has(text, &format!("{keyword} {name}")))
}

/// A Rust file of a package.
struct SourceFile {
    path: String,
    /// The module path, the package's folder first: `crates/core::window::summary`.
    module: String,
    text: String,
    /// The text without lines that are comments.
    code: String,
    /// The path of each `use`.
    uses: Vec<String>,
    /// Names of types that it declares.
    declared_types: BTreeSet<String>,
    /// Names of types that it declares or implements something for.
    types: BTreeSet<String>,
    /// The first word of each line, `pub` apart: fields, variants, rows of a macro's table.
    first_words: BTreeSet<String>,
}

impl SourceFile {
    fn new(path: &str, text: &str) -> Option<Self> {
        let (package, inside) = path.split_once("/src/").or_else(|| Some((".", path.strip_prefix("src/")?)))?;
        let inside = inside.strip_suffix(".rs")?;
        let inside = inside.strip_suffix("/mod").unwrap_or(inside);
        let is_root = matches!(inside, "lib" | "main");
        let module = if is_root { package.to_owned() } else { format!("{package}::{}", inside.replace('/', "::")) };
        let lines: Vec<&str> = text.lines().map(str::trim_start).filter(|line| !line.starts_with("//")).collect();
        let code = lines.join("\n");
        let uses = places(&code, "use").filter_map(|(_, after)| Some(after.split_once(';')?.0.trim().to_owned())).collect();
        let mut file = Self {
            path: path.to_owned(),
            module,
            text: text.to_owned(),
            uses,
            declared_types: BTreeSet::new(),
            types: BTreeSet::new(),
            first_words: BTreeSet::new(),
            code: String::new(),
        };
        for line in lines {
            file.read_line(line);
        }
        file.code = code;
        Some(file)
    }

    fn read_line(&mut self, line: &str) {
        let restricted = || Some(line.strip_prefix("pub(")?.split_once(") ")?.1);
        let bare = line.strip_prefix("pub ").or_else(restricted).unwrap_or(line);
        self.first_words.extend(bare.split(|c| !is_word(c)).next().map(str::to_owned));
        let words: Vec<&str> = line.split(|c| !is_word(c)).collect();
        let declared = words.windows(2).filter(|pair| TYPES.contains(&pair[0])).map(|pair| pair[1].to_owned());
        self.declared_types.extend(declared);
        if line.starts_with("impl") || words.iter().any(|word| TYPES.contains(word)) {
            self.types.extend(words.iter().filter(|word| word.starts_with(char::is_uppercase)).map(|word| (*word).to_owned()));
        }
    }

    fn package(&self) -> &str {
        self.module.split("::").next().unwrap_or_default()
    }

    /// Returns whether the file declares or imports this name.
    fn has_name(&self, name: &str) -> bool {
        has_one(&self.code, &ITEMS, name)
            || self.uses.iter().any(|tree| has(tree, name) || tree.contains("::*"))
            || self.first_words.contains(name)
    }

    fn has_member(&self, name: &str) -> bool {
        let in_line = |(before, _): (&str, &str)| before.trim_end().ends_with(['{', ',', '(']);
        has_one(&self.code, &["fn", "const", "type"], name)
            || self.first_words.contains(name)
            || places(&self.code, name).any(in_line)
    }

    /// Returns the links of its doc comments to items, and the lines on which they are.
    fn links(&self) -> Vec<(usize, &str)> {
        let mut links = Vec::new();
        let mut defined = BTreeSet::new();
        for (at, line) in self.text.lines().enumerate() {
            let Some(line) = ["///", "//!"].into_iter().find_map(|mark| line.trim_start().strip_prefix(mark)) else { continue };
            for part in line.split("[`").skip(1) {
                let Some((name, after)) = part.split_once("`]") else { continue };
                let definition =
                    after.strip_prefix(": ").map(str::trim).filter(|text| text.contains("::") && !text.contains(' '));
                let target = match (definition, after.strip_prefix('(')) {
                    (Some(definition), _) => {
                        defined.insert(name);
                        definition
                    }
                    (None, Some(rest)) => rest.split(')').next().unwrap_or(rest),
                    (None, None) => name,
                };
                let target = target.trim().trim_matches('`');
                let target = target.split_once('@').map_or(target, |(_, name)| name);
                let target = target.split(['<', '(', '!']).next().unwrap_or(target);
                if !target.is_empty() && target.chars().all(|c| is_word(c) || c == ':') {
                    links.push((at + 1, target));
                }
            }
        }
        links.retain(|(_, target)| !defined.contains(target));
        links
    }
}

/// All files, and the folder of each of our crates by the crate's name in code.
struct Sources {
    files: Vec<SourceFile>,
    crates: BTreeMap<String, String>,
}

impl Sources {
    fn is_module(&self, module: &str) -> bool {
        self.files.iter().any(|file| file.module == module)
    }

    /// Returns whether a path that begins in this module leads to something.
    fn leads_from(&self, module: &str, path: &[&str]) -> bool {
        let (mut module, mut path) = (module.to_owned(), path);
        while let [first, rest @ ..] = path {
            let deeper = format!("{module}::{first}");
            if !self.is_module(&deeper) {
                break;
            }
            (module, path) = (deeper, rest);
        }
        let [first, rest @ ..] = path else { return true };
        let exported = format!("macro_rules! {first}");
        let is_there = |file: &SourceFile| {
            (file.module == module && file.has_name(first)) || (file.package() == module && has(&file.code, &exported))
        };
        self.files.iter().any(is_there) && rest.last().is_none_or(|member| self.has_member(first, member))
    }

    /// Returns whether a type of ours has this member; true for a type of others.
    fn has_member(&self, name: &str, member: &str) -> bool {
        let homes = self.files.iter().filter(|file| file.declared_types.contains(name));
        let homes: BTreeSet<&str> = homes.map(SourceFile::package).collect();
        let is_about = |file: &SourceFile| file.types.contains(name) || file.first_words.contains(name);
        let mut files = self.files.iter().filter(|file| homes.contains(file.package()) && is_about(file));
        homes.is_empty() || files.any(|file| file.has_member(member))
    }

    /// Returns whether a file imports this name from a crate that is not ours.
    fn is_of_others(&self, file: &SourceFile, name: &str) -> bool {
        file.uses.iter().filter(|tree| has(tree, name)).any(|tree| {
            let root = tree.split(|c| !is_word(c)).next().unwrap_or_default();
            let is_ours = ["crate", "self", "super"].contains(&root) || self.crates.contains_key(root);
            !is_ours && !self.is_module(&format!("{}::{root}", file.module))
        })
    }

    fn leads_somewhere(&self, file: &SourceFile, link: &str) -> bool {
        let path: Vec<&str> = link.split("::").collect();
        match path.as_slice() {
            ["Self", member, ..] => file.has_member(member) || file.types.iter().any(|name| self.has_member(name, member)),
            ["crate", rest @ ..] => self.leads_from(file.package(), rest),
            ["self", rest @ ..] => self.leads_from(&file.module, rest),
            ["super", ..] => {
                let (mut module, mut rest) = (file.module.as_str(), path.as_slice());
                while let ["super", below @ ..] = rest {
                    module = module.rsplit_once("::").map_or(module, |(above, _)| above);
                    rest = below;
                }
                self.leads_from(module, rest)
            }
            [name] => PRELUDE.contains(name) || self.crates.contains_key(*name) || file.has_name(name),
            [first, rest @ ..] => match self.crates.get(*first) {
                Some(folder) => self.leads_from(folder, rest),
                None if *first == "std" || self.is_of_others(file, first) => true,
                None if self.is_module(&format!("{}::{first}", file.module)) => self.leads_from(&file.module, &path),
                None => file.has_name(first) && rest.last().is_none_or(|member| self.has_member(first, member)),
            },
            [] => true,
        }
    }

    /// Returns the links that lead nowhere, with their files and lines.
    fn broken(&self) -> Vec<String> {
        let broken = |file: &SourceFile| {
            let links = file.links().into_iter().filter(|(_, link)| !self.leads_somewhere(file, link));
            links.map(|(line, link)| format!("{}:{line}: {link}", file.path)).collect::<Vec<_>>()
        };
        self.files.iter().flat_map(broken).collect()
    }
}

/// Returns the files that git knows or would add, by a pattern.
fn listed(pattern: &str) -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let arguments = ["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", pattern];
    let list = Command::new("git").args(arguments).current_dir(root).output().expect("git lists the files");
    assert!(list.status.success(), "{}", String::from_utf8_lossy(&list.stderr));
    let names = String::from_utf8(list.stdout).unwrap();
    let names: BTreeSet<&str> = names.split_terminator('\0').collect();
    names.into_iter().filter_map(|name| Some((name.to_owned(), fs::read_to_string(root.join(name)).ok()?))).collect()
}

#[test]
fn every_link_of_a_doc_comment_leads_to_an_item() {
    let files: Vec<SourceFile> = listed("*.rs").iter().filter_map(|(path, text)| SourceFile::new(path, text)).collect();
    let crates = listed("*Cargo.toml").into_iter().filter_map(|(path, text)| {
        let manifest: toml::Table = text.parse().unwrap();
        let name = manifest.get("package")?.get("name")?.as_str()?.replace('-', "_");
        let folder = path.strip_suffix("/Cargo.toml").unwrap_or(".");
        Some((name, folder.to_owned()))
    });
    let sources = Sources { crates: crates.collect(), files };
    let links: usize = sources.files.iter().map(|file| file.links().len()).sum();
    assert!(links > 300, "only {links} links were found");
    let broken = sources.broken();
    assert!(broken.is_empty(), "links of doc comments that lead nowhere:\n{}", broken.join("\n"));
}

#[test]
fn a_link_to_an_item_that_is_gone_is_found() {
    let broken = |comment: &str| {
        let lib = "use kube::Event;\nmod a;\nmod b;\npub use a::Kept;\n#[macro_export]\nmacro_rules! table { () => {} }\n";
        let a =
            "pub struct Kept {\n    pub field: u8,\n}\nimpl Kept {\n    pub fn new() {}\n}\npub enum Kind { First, Second }\n";
        let b = format!("{comment}\nuse crate::a::Kind;\nuse kube::Event;\nstruct Own;\nimpl Own {{ fn run() {{}} }}\n");
        let files = [("crates/x/src/lib.rs", lib), ("crates/x/src/a.rs", a), ("crates/x/src/b.rs", b.as_str())];
        let files = files.iter().filter_map(|(path, text)| SourceFile::new(path, text)).collect();
        Sources { files, crates: BTreeMap::from([("x".to_owned(), "crates/x".to_owned())]) }.broken()
    };
    for whole in [
        "//! [`Own`], [`Self::run`], [`Own::run()`], [`Vec`]",
        "//! [`crate::a`], [`crate::a::Kept::new`], [`super::Kept::field`], [`x::a::Kind`], [`super::a::Kind::Second`]",
        "//! [`Kind::First`], [`Event::Anything`], [`crate::table`], [the kind](crate::a::Kind), [`std::fmt`]",
        "//! [`Kept`], [text](https://example.org)\n//!\n//! [`Kept`]: crate::a::Kept",
        "// [`gone`]",
    ] {
        assert_eq!(broken(whole), Vec::<String>::new(), "{whole}");
    }
    for (link, target) in [
        ("[`Gone`]", "Gone"),
        ("[`crate::gone`]", "crate::gone"),
        ("[`crate::gone::Kept`]", "crate::gone::Kept"),
        ("[`super::a::Kept::split_at`]", "super::a::Kept::split_at"),
        ("[`Self::set_failed`]", "Self::set_failed"),
        ("[`Kind::Third`]", "Kind::Third"),
        ("[`Kept`](crate::a::Lost)", "crate::a::Lost"),
    ] {
        assert_eq!(broken(&format!("//! {link}")), [format!("crates/x/src/b.rs:1: {target}")], "{link}");
    }
}
