//! `cargo xtask words`: how this code reads, as figures: names of one word, names with several meanings, the words of comments, of
//! string literals and of pages, long functions, circles of imports. It fails nothing; it shows where to look.
//!
//! In: the product's Rust files (tests, benchmarks and `#[cfg(test)]` modules apart), and the Markdown pages. Out: a table, and the
//! worst places of each figure.
//!
//! A circle of imports is a set of files in which each file imports every other one, by way of others. Imports are the paths in `use`,
//! code, macros and heads of `impl` that begin with `crate`, `super`, `self` or a module that the file declares. There are two figures.
//! The first leaves out what a module's own file takes from the modules below it, as `mod.rs` from the files of its folder: a module is
//! made of these files and passes on what they define, and with such imports a folder is a circle as soon as its files use a type of the
//! parent. The second counts them, too.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use proc_macro2::{TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::process;

#[derive(Debug, Args)]
pub struct Options {
    /// Number of places of each kind that are shown.
    #[arg(long, default_value_t = 20)]
    worst: usize,
    /// Only files below these folders [default: the product and its pages].
    folders: Vec<PathBuf>,
}

/// Folders of the product's code.
const PRODUCT: [&str; 4] = ["schemas/src", "crates", "services", "src"];
/// Crates that are there for tests only.
const FOR_TESTS: [&str; 2] = ["crates/testing", "crates/faults"];
/// Markdown pages and folders of them.
const PAGES: [&str; 4] = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "docs"];
/// Words of speech that readers of this field do not expect in comments, messages and pages.
const DIALECT: [&str; 9] = ["said", "says", "say", "told", "tells", "tell", "stands", "stand", "heard"];
const LONG_FUNCTION_LINES: usize = 60;
/// Files that a circle of imports may have before the figure is marked.
const CIRCLE_FILES_MAX: usize = 8;
const FILES_THAT_SHARE_A_NAME: usize = 3;

pub fn run(options: &Options) -> anyhow::Result<()> {
    let root = process::root();
    let is_whole = options.folders.is_empty();
    let places = |whole: &[&str]| -> Vec<PathBuf> {
        if is_whole { whole.iter().map(PathBuf::from).collect() } else { options.folders.clone() }
    };
    let read = |file: &Path| fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()));
    let mut code = Code::default();
    for place in places(&PRODUCT) {
        for file in files(&root.join(place), "rs")? {
            let path = file.strip_prefix(&root).unwrap_or(&file).to_owned();
            if !is_whole || is_product(&path) {
                code.read(&path, &read(&file)?).with_context(|| format!("cannot parse {}", path.display()))?;
            }
        }
    }
    for place in places(&PAGES) {
        for file in files(&root.join(place), "md")? {
            let path = file.strip_prefix(&root).unwrap_or(&file);
            code.pages.count(&path.display().to_string(), &page_text(&read(&file)?));
        }
    }
    print!("{}", code.report(options.worst));
    Ok(())
}

fn is_product(path: &Path) -> bool {
    let apart = ["tests", "benches", "examples"];
    !FOR_TESTS.iter().any(|folder| path.starts_with(folder))
        && !path.components().any(|part| apart.iter().any(|name| part.as_os_str() == *name))
        && path.file_name().is_none_or(|name| name != "tests.rs")
}

/// Returns the files of this extension below a folder, in order; `place` may be such a file itself.
fn files(place: &Path, extension: &str) -> anyhow::Result<Vec<PathBuf>> {
    let has_extension = |path: &Path| path.extension().is_some_and(|own| own == extension);
    if place.is_file() {
        return Ok(Some(place.to_owned()).filter(|path| has_extension(path)).into_iter().collect());
    }
    let mut found = Vec::new();
    let mut folders = vec![place.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if has_extension(&path) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Returns the code before the test module at the end of a file. Test modules in files of their own are no end.
fn without_tests(code: &str) -> &str {
    let mut modules = code.match_indices("#[cfg(test)]\nmod ");
    let end = modules.find(|(at, _)| code[*at..].lines().nth(1).is_some_and(|line| line.contains('{')));
    end.map_or(code, |(at, _)| &code[..at])
}

/// Returns a page without its code blocks.
fn page_text(page: &str) -> String {
    let mut is_code = false;
    let mut text = String::new();
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            text.extend([line, "\n"]);
        }
    }
    text
}

/// Returns the text of the string literals that have several words, one a line; doc comments are left out.
fn string_text(tokens: TokenStream) -> String {
    let mut text = String::new();
    for token in tokens {
        match token {
            TokenTree::Group(group) => {
                let inner = group.stream();
                let is_doc = matches!(inner.clone().into_iter().next(), Some(TokenTree::Ident(name)) if name == "doc");
                if !is_doc {
                    text.push_str(&string_text(inner));
                }
            }
            TokenTree::Literal(literal) => {
                let value = syn::parse_str::<syn::LitStr>(&literal.to_string()).map(|text| text.value()).unwrap_or_default();
                if value.trim().contains(' ') {
                    text.extend([value.as_str(), "\n"]);
                }
            }
            TokenTree::Ident(_) | TokenTree::Punct(_) => {}
        }
    }
    text
}

/// Words of one kind of text, and the dialect in them.
#[derive(Debug, Default)]
struct WordCounts {
    words: usize,
    /// Number of words of the dialect in each file that has any, and the file.
    dialect: Vec<(usize, String)>,
}

impl WordCounts {
    fn count(&mut self, path: &str, text: &str) {
        let mut dialect = 0;
        for word in text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty()) {
            self.words += 1;
            dialect += usize::from(DIALECT.contains(&&*word.to_lowercase()));
        }
        if dialect > 0 {
            self.dialect.push((dialect, path.to_owned()));
        }
    }

    /// Returns words of the dialect per 100,000 words, and the number of words.
    fn figure(&self) -> String {
        let dialect: usize = self.dialect.iter().map(|(count, _)| count).sum();
        format!("{:.0} of {}", per_100_000(dialect, self.words), self.words)
    }

    /// Returns the files with the most words of the dialect first.
    fn worst(&self) -> Vec<String> {
        let mut dialect = self.dialect.clone();
        dialect.sort_by(|a, b| b.cmp(a));
        dialect.iter().map(|(count, path)| format!("{count:>3} {path}")).collect()
    }
}

fn per_100_000(count: usize, words: usize) -> f64 {
    100_000.0 * count as f64 / words.max(1) as f64
}

/// A declared name and where it is declared.
type Place = (String, String);

/// Figures of the files that were read.
#[derive(Debug, Default)]
struct Code {
    types: Vec<Place>,
    functions: Vec<Place>,
    long_functions: Vec<(usize, Place)>,
    comments: WordCounts,
    strings: WordCounts,
    pages: WordCounts,
    /// Number of "if" in comments.
    ifs: usize,
    /// Number of "returns" in comments.
    returns: usize,
    /// Module path of each file, with the module paths that it names.
    imports: BTreeMap<String, BTreeSet<String>>,
}

impl Code {
    fn read(&mut self, path: &Path, text: &str) -> anyhow::Result<()> {
        let module = module(path);
        let mut visitor = Visitor {
            path: path.display().to_string(),
            module: module.clone(),
            children: Vec::new(),
            is_in_trait_impl: false,
            code: self,
            names: BTreeSet::new(),
        };
        visitor.visit_file(&syn::parse_file(text)?);
        let names = visitor.names;
        self.imports.insert(module, names);
        self.prose(&path.display().to_string(), text)
    }

    /// Counts the words of the comments and string literals of a file; those of its tests are left out.
    fn prose(&mut self, path: &str, text: &str) -> anyhow::Result<()> {
        let text = without_tests(text);
        let comments: Vec<&str> = text.lines().filter_map(|line| line.trim_start().strip_prefix("//")).collect();
        let comments = comments.join("\n");
        for word in comments.split(|c: char| !c.is_alphanumeric() && c != '_') {
            self.ifs += usize::from(word.eq_ignore_ascii_case("if"));
            self.returns += usize::from(word.eq_ignore_ascii_case("returns"));
        }
        self.comments.count(path, &comments);
        self.strings.count(path, &string_text(syn::parse_str(text)?));
        Ok(())
    }

    fn report(&self, worst: usize) -> String {
        let mut lines = Vec::new();
        let share = |part: usize, whole: usize| 100.0 * part as f64 / whole.max(1) as f64;
        let one_word = |places: &[Place], is_one: fn(&str) -> bool| -> Vec<Place> {
            places.iter().filter(|(name, _)| is_one(name)).cloned().collect()
        };
        let types = one_word(&self.types, is_one_word_type);
        let functions = one_word(&self.functions, is_one_word_function);
        let shared = self.shared_names();
        let circle = self.largest_circle(ImportsFromBelow::LeftOut);
        let whole_circle = self.largest_circle(ImportsFromBelow::Counted);
        let per = |count: usize| per_100_000(count, self.comments.words);
        for (what, figure) in [
            ("type names of one word, %", format!("{:.0} of {}", share(types.len(), self.types.len()), self.types.len())),
            (
                "function names of one word, %",
                format!("{:.0} of {}", share(functions.len(), self.functions.len()), self.functions.len()),
            ),
            ("type names that three or more files define", shared.len().to_string()),
            ("said, told, stands, … per 100,000 comment words", self.comments.figure()),
            ("said, told, stands, … per 100,000 string words", self.strings.figure()),
            ("said, told, stands, … per 100,000 page words", self.pages.figure()),
            ("\"if\" per 100,000 comment words", format!("{:.0}", per(self.ifs))),
            ("\"returns\" per 100,000 comment words", format!("{:.0}", per(self.returns))),
            ("functions over 60 lines, %", format!("{:.1}", share(self.long_functions.len(), self.functions.len()))),
            ("largest circle of imports, files", circle_figure(&circle)),
            ("the same, with imports from modules below", circle_figure(&whole_circle)),
        ] {
            lines.push(format!("{what:<52} {figure}"));
        }
        let mut section = |title: &str, rows: Vec<String>| {
            if !rows.is_empty() {
                lines.push(format!("\n{title}"));
                lines.extend(rows.into_iter().take(worst).map(|row| format!("  {row}")));
            }
        };
        section(
            "type names that most files define",
            shared.iter().map(|(name, files)| format!("{name}: {}", files.join(", "))).collect(),
        );
        section("most dialect in comments", self.comments.worst());
        section("most dialect in string literals", self.strings.worst());
        section("most dialect on pages", self.pages.worst());
        let mut long = self.long_functions.clone();
        long.sort_by(|a, b| b.cmp(a));
        section(
            "longest functions, lines",
            long.iter().map(|(length, (name, path))| format!("{length:>3} {name} in {path}")).collect(),
        );
        section("largest circle of imports", circle);
        section("largest circle of imports, with imports from modules below", whole_circle);
        lines.join("\n") + "\n"
    }

    /// Returns the type names that three or more files define, the most files first.
    fn shared_names(&self) -> Vec<(&str, Vec<&str>)> {
        let mut files: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (name, path) in &self.types {
            files.entry(name).or_default().insert(path);
        }
        let shared = files.into_iter().filter(|(_, files)| files.len() >= FILES_THAT_SHARE_A_NAME);
        let mut shared: Vec<_> = shared.map(|(name, files)| (name, files.into_iter().collect::<Vec<_>>())).collect();
        shared.sort_by_key(|(_, files)| std::cmp::Reverse(files.len()));
        shared
    }

    /// Returns the files of the largest set in which every file imports, by way of others, every other.
    fn largest_circle(&self, from_below: ImportsFromBelow) -> Vec<String> {
        let modules: Vec<&String> = self.imports.keys().collect();
        // The file that a path leads to: the longest module that it begins with.
        let target = |name: &str| {
            let mut name = name;
            loop {
                if let Ok(found) = modules.binary_search_by(|module| module.as_str().cmp(name)) {
                    return Some(found);
                }
                name = name.rsplit_once("::")?.0;
            }
        };
        let is_counted = |own: &str, found: usize| {
            let below = modules[found].strip_prefix(own);
            from_below == ImportsFromBelow::Counted || below.is_none_or(|rest| !rest.starts_with("::"))
        };
        let reach: Vec<BTreeSet<usize>> = self
            .imports
            .iter()
            .enumerate()
            .map(|(own, (module, names))| {
                let found = names.iter().filter_map(|name| target(name)).filter(|found| *found != own);
                found.filter(|found| is_counted(module, *found)).collect()
            })
            .collect();
        let reachable = |from: usize| {
            let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
            while let Some(at) = open.pop() {
                open.extend(reach[at].iter().copied().filter(|next| seen.insert(*next)));
            }
            seen
        };
        let all: Vec<_> = (0..modules.len()).map(reachable).collect();
        let circles =
            (0..modules.len()).map(|at| all[at].iter().copied().filter(|to| all[*to].contains(&at)).collect::<Vec<_>>());
        let largest = circles.max_by_key(Vec::len).unwrap_or_default();
        largest.into_iter().map(|at| modules[at].clone()).collect()
    }
}

/// Whether the imports of a module's own file from the modules below it count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ImportsFromBelow {
    Counted,
    LeftOut,
}

/// Returns the number of files of a circle, marked if there are too many.
fn circle_figure(circle: &[String]) -> String {
    let mark = if circle.len() > CIRCLE_FILES_MAX { format!(", over {CIRCLE_FILES_MAX}") } else { String::new() };
    format!("{}{mark}", circle.len())
}

/// Returns the module path of a file, its package first: `crates/core::window::summary`.
fn module(path: &Path) -> String {
    let text = path.with_extension("").display().to_string();
    let (package, inside) = text.split_once("/src/").or_else(|| text.split_once("src/")).unwrap_or(("", &text));
    let inside = inside.trim_end_matches("/mod");
    let root = matches!(inside, "lib" | "main");
    let inside = if root { String::new() } else { format!("::{}", inside.replace('/', "::")) };
    format!("{}{inside}", if package.is_empty() { "." } else { package })
}

fn is_one_word_type(name: &str) -> bool {
    name.chars().filter(|c| c.is_uppercase()).count() <= 1
}

fn is_one_word_function(name: &str) -> bool {
    !name.trim_matches('_').contains('_')
}

struct Visitor<'a> {
    path: String,
    /// The module path of the file, or of the module within it that is visited.
    module: String,
    /// Names of the modules that this module declares, except those of tests.
    children: Vec<String>,
    is_in_trait_impl: bool,
    code: &'a mut Code,
    names: BTreeSet<String>,
}

impl Visitor<'_> {
    fn place(&self, name: &syn::Ident) -> Place {
        (name.to_string(), self.path.clone())
    }

    fn function(&mut self, name: &syn::Ident, block: Option<&syn::Block>) {
        let place = self.place(name);
        if let Some(block) = block {
            let lines = block.span().end().line - block.span().start().line + 1;
            if lines > LONG_FUNCTION_LINES {
                self.code.long_functions.push((lines, place.clone()));
            }
        }
        self.code.functions.push(place);
    }

    /// Takes a path if it leads to a module of this package.
    fn import(&mut self, segments: &[String]) {
        let is_keyword = |segment: &String| ["crate", "super", "self"].contains(&segment.as_str());
        let Some(first) = segments.first().filter(|_| segments.len() > 1 && !segments.iter().all(is_keyword)) else { return };
        let mut base = match first.as_str() {
            "crate" => self.module.split("::").next().unwrap_or_default().to_owned(),
            "super" | "self" => self.module.clone(),
            _ if self.children.contains(first) => self.module.clone(),
            _ => return,
        };
        for segment in segments {
            match segment.as_str() {
                "crate" | "self" => {}
                "super" => base = base.rsplit_once("::").map_or(base.clone(), |(above, _)| above.to_owned()),
                other => base = format!("{base}::{other}"),
            }
        }
        self.names.insert(base);
    }

    fn use_tree(&mut self, tree: &syn::UseTree, before: &[String]) {
        match tree {
            syn::UseTree::Path(path) => {
                let segments = [before, &[path.ident.to_string()]].concat();
                self.use_tree(&path.tree, &segments);
            }
            syn::UseTree::Name(name) => self.import(&[before, &[name.ident.to_string()]].concat()),
            syn::UseTree::Rename(name) => self.import(&[before, &[name.ident.to_string()]].concat()),
            syn::UseTree::Glob(_) => self.import(&[before, &["*".to_owned()]].concat()),
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.use_tree(tree, before)),
        }
    }
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) => list.path.is_ident("cfg") && list.tokens.to_string().contains("test"),
        meta => meta.path().is_ident("test"),
    })
}

/// Returns the names of the modules that are declared here, except those of tests.
fn child_modules(items: &[syn::Item]) -> Vec<String> {
    let modules = items.iter().filter_map(|item| if let syn::Item::Mod(module) = item { Some(module) } else { None });
    modules.filter(|module| !is_test(&module.attrs)).map(|module| module.ident.to_string()).collect()
}

/// Returns the paths in the tokens of a macro, words without `::` included.
fn token_paths(tokens: TokenStream) -> Vec<Vec<String>> {
    let (mut paths, mut path, mut colons) = (Vec::new(), Vec::new(), 0);
    for token in tokens {
        match token {
            TokenTree::Punct(punct) if punct.as_char() == ':' => {
                colons += 1;
                continue;
            }
            TokenTree::Ident(name) if colons == 2 => path.push(name.to_string()),
            TokenTree::Ident(name) => paths.push(std::mem::replace(&mut path, vec![name.to_string()])),
            TokenTree::Group(group) => {
                paths.push(std::mem::take(&mut path));
                paths.extend(token_paths(group.stream()));
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => paths.push(std::mem::take(&mut path)),
        }
        colons = 0;
    }
    paths.push(path);
    paths
}

impl<'ast> Visit<'ast> for Visitor<'_> {
    fn visit_file(&mut self, file: &'ast syn::File) {
        self.children = child_modules(&file.items);
        visit::visit_file(self, file);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if is_test(&item.attrs) {
            return;
        }
        let children = item.content.as_ref().map(|(_, items)| child_modules(items)).unwrap_or_default();
        let within = format!("{}::{}", self.module, item.ident);
        let around = (std::mem::replace(&mut self.module, within), std::mem::replace(&mut self.children, children));
        visit::visit_item_mod(self, item);
        (self.module, self.children) = around;
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        let place = self.place(&item.ident);
        self.code.types.push(place);
        visit::visit_item_struct(self, item);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        let place = self.place(&item.ident);
        self.code.types.push(place);
        visit::visit_item_enum(self, item);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        let place = self.place(&item.ident);
        self.code.types.push(place);
        visit::visit_item_trait(self, item);
    }

    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        let place = self.place(&item.ident);
        self.code.types.push(place);
        visit::visit_item_type(self, item);
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if !is_test(&item.attrs) {
            self.function(&item.sig.ident, Some(&item.block));
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        // Names of a trait's methods were chosen where the trait is.
        if !self.is_in_trait_impl {
            self.function(&item.sig.ident, Some(&item.block));
        }
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.function(&item.sig.ident, item.default.as_ref());
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let around = std::mem::replace(&mut self.is_in_trait_impl, item.trait_.is_some());
        visit::visit_item_impl(self, item);
        self.is_in_trait_impl = around;
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !is_test(&item.attrs) {
            self.use_tree(&item.tree, &[]);
        }
    }

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        for path in token_paths(item.tokens.clone()) {
            self.import(&path);
        }
        visit::visit_macro(self, item);
    }

    /// A restricted visibility names a module, and takes nothing from it.
    fn visit_vis_restricted(&mut self, _: &'ast syn::VisRestricted) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.import(&segments);
        visit::visit_path(self, path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(files: &[(&str, &str)]) -> Code {
        let mut code = Code::default();
        for (path, text) in files {
            code.read(Path::new(path), text).unwrap();
        }
        code
    }

    #[test]
    fn names_are_counted_and_those_of_tests_are_not() {
        let text = "struct Seen;\nenum LogPosition { A }\nfn judge() {}\nfn write_block() {}\nimpl Seen { fn tell(&self) {} }\n\
            impl Clone for Seen { fn clone(&self) -> Self { Self } }\n#[cfg(test)]\nmod tests { struct Fake; fn help() {} }\n";
        let code = code(&[("crates/a/src/lib.rs", text)]);
        assert_eq!(code.types.iter().map(|place| &*place.0).collect::<Vec<_>>(), ["Seen", "LogPosition"]);
        assert_eq!(code.functions.iter().map(|place| &*place.0).collect::<Vec<_>>(), ["judge", "write_block", "tell"]);
        assert!(code.report(9).contains("type names of one word, %                            50 of 2"), "{}", code.report(9));
    }

    #[test]
    fn words_of_comments_are_counted_without_those_of_tests() {
        let text = "//! What is said.\n/// Returns it if it can.\nfn a() {} \n#[cfg(test)]\nmod tests { // told\n}\n";
        let code = code(&[("a/src/x.rs", text)]);
        assert_eq!((code.comments.words, code.ifs, code.returns), (8, 1, 1));
        assert_eq!(code.comments.dialect, [(1, "a/src/x.rs".to_owned())]);
    }

    #[test]
    fn words_of_string_literals_are_counted_without_comments_and_single_words() {
        for (text, wanted) in [
            (r#"f("what it says");"#, "what it says\n"),
            (r##"f(r#"a "raw" text"#, "told")"##, "a \"raw\" text\n"),
            (r#"f('"', '\'', "a \" b", b"of bytes", "c d")"#, "a \" b\nc d\n"),
            ("/// A \"doc text\".\n// \"not this\"\nfn f<'a>(x: &'a str) { tracing::info!(x, \"but this\") }", "but this\n"),
            ("f(\"two \\\n   lines\")", "two lines\n"),
        ] {
            assert_eq!(string_text(syn::parse_str(text).unwrap()), wanted, "{text}");
        }
        let text =
            "#[cfg(test)]\nmod fake;\nfn a() { f(\"what it says\") }\n#[cfg(test)]\nmod tests {\n fn b() { f(\"as told\") } }\n";
        let code = code(&[("a/src/x.rs", text)]);
        assert_eq!((code.strings.words, code.strings.dialect), (3, vec![(1, "a/src/x.rs".to_owned())]));
    }

    #[test]
    fn words_of_pages_are_counted_without_code_blocks() {
        let mut pages = WordCounts::default();
        pages.count("a.md", &page_text("# It stands\n```sh\nsay it\n```\nand tells it.\n"));
        assert_eq!((pages.words, &*pages.worst()), (5, &["  2 a.md".to_owned()][..]));
        assert_eq!(pages.figure(), "40000 of 5");
    }

    #[test]
    fn names_of_three_files_and_long_functions_are_found() {
        let long = format!("struct Step;\nfn f() {{\n{}}}\n", "();\n".repeat(60));
        let code = code(&[("a/src/x.rs", &long), ("a/src/y.rs", "struct Step;"), ("a/src/z.rs", "struct Step;")]);
        assert_eq!(code.shared_names(), [("Step", vec!["a/src/x.rs", "a/src/y.rs", "a/src/z.rs"])]);
        assert_eq!(code.long_functions, [(62, ("f".to_owned(), "a/src/x.rs".to_owned()))]);
    }

    #[test]
    fn the_largest_circle_is_found_through_uses_and_paths() {
        let code = code(&[
            ("crates/a/src/lib.rs", "mod x; mod y; mod z; use x::X;"),
            ("crates/a/src/x.rs", "use crate::y::{inner::Y, Other};"),
            ("crates/a/src/y/mod.rs", "impl crate::z::Z for Y {}"),
            ("crates/a/src/z.rs", "pub(crate) fn f() { g!(\"\", super::x::h()) }"),
            ("crates/b/src/x.rs", "use crate::y::Y;"),
        ]);
        let circle = ["crates/a::x", "crates/a::y", "crates/a::z"];
        assert_eq!(code.largest_circle(ImportsFromBelow::LeftOut), circle);
        // Nothing takes anything from the root.
        assert_eq!(code.largest_circle(ImportsFromBelow::Counted), circle);
    }

    #[test]
    fn imports_of_a_module_from_those_below_it_are_a_figure_of_their_own() {
        for import in
            ["mod x; use self::x::X;", "mod x; use x::X;", "mod x; pub use x::*;", "mod x; fn f() { x::g() }", "mod x; h!(x::Y);"]
        {
            let code = code(&[("crates/a/src/lib.rs", import), ("crates/a/src/x.rs", "use super::Y;")]);
            assert_eq!(code.largest_circle(ImportsFromBelow::LeftOut), Vec::<String>::new(), "{import}");
            assert_eq!(code.largest_circle(ImportsFromBelow::Counted), ["crates/a", "crates/a::x"], "{import}");
        }
        // A module of tests, and a variable of the name of a module.
        for none in ["#[cfg(test)] mod x; #[cfg(test)] use x::X;", "mod x; fn f(x: u8) -> u8 { x }", "mod y; use x::X;"] {
            let code = code(&[("crates/a/src/lib.rs", none), ("crates/a/src/x.rs", "mod inner { use super::super::Y; }")]);
            assert_eq!(code.largest_circle(ImportsFromBelow::Counted), Vec::<String>::new(), "{none}");
        }
    }

    #[test]
    fn a_circle_of_too_many_files_is_marked() {
        let files = |count: usize| (0..count).map(|file| file.to_string()).collect::<Vec<_>>();
        assert_eq!((circle_figure(&files(8)), circle_figure(&files(9))), ("8".to_owned(), "9, over 8".to_owned()));
    }

    #[test]
    fn tests_and_test_crates_are_no_product() {
        for path in ["crates/a/tests/x.rs", "crates/a/benches/b.rs", "crates/testing/src/lib.rs", "crates/a/src/x/tests.rs"] {
            assert!(!is_product(Path::new(path)), "{path}");
        }
        assert!(is_product(Path::new("crates/a/src/x.rs")));
    }
}
