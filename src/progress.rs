//! Progress of a command, with the time left: one bar on standard error, only if that is a terminal.

use std::io::{IsTerminal, Read, Write};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use eadt_lake::{Archive, ArchiveListing, LakeError};
use eadt_report::units;
use eadt_schemas::Topic;
use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressState, ProgressStyle, WeakProgressBar};

/// A command that ends sooner shows no bar.
const DELAY: Duration = Duration::from_secs(1);
/// Interval between two drawings of the bar: the time left changes while a step takes long.
const REDRAW: Duration = Duration::from_millis(500);
/// Characters of the bar itself.
const BAR_WIDTH: usize = 24;

/// Unit of the counted work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WorkUnit {
    /// Steps, with their name in the plural.
    Steps(&'static str),
    /// Bytes that are read.
    Bytes,
}

/// A bar for work of a known size. Clones are the same bar; it goes when the last one is dropped.
#[derive(Debug, Clone)]
pub struct ProgressMeter(ProgressBar);

impl ProgressMeter {
    fn new(total: u64, unit: WorkUnit) -> Self {
        if !is_shown() {
            return Self(ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden()));
        }
        let write = move |state: &ProgressState, out: &mut dyn std::fmt::Write| {
            let text = bar_text(unit, state.pos(), state.len().unwrap_or(0), state.elapsed(), state.eta());
            // The line is a String, which takes every write.
            out.write_str(&text).ok();
        };
        let style = ProgressStyle::with_template("{line}").unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
        let bar = bar.with_style(style.with_key("line", write)).with_finish(ProgressFinish::AndClear);
        bar.enable_steady_tick(REDRAW);
        *lock_shown() = Some(bar.downgrade());
        Self(bar)
    }

    /// Returns a bar of steps; `unit` is their name in the plural.
    pub fn steps(total: u64, unit: &'static str) -> Self {
        Self::new(total, WorkUnit::Steps(unit))
    }

    /// Returns a bar of bytes that are read.
    pub fn bytes(total: u64) -> Self {
        Self::new(total, WorkUnit::Bytes)
    }

    /// Returns a bar of the bytes of these files; a file whose size cannot be read counts as empty.
    pub fn over_files<'a>(paths: impl IntoIterator<Item = &'a PathBuf>) -> Self {
        Self::bytes(paths.into_iter().filter_map(|path| std::fs::metadata(path).ok()).map(|found| found.len()).sum())
    }

    /// Returns the text of a bar of bytes, also of one that is not shown; nothing if their number is not known.
    pub fn bytes_text(&self) -> String {
        let total = self.0.length().unwrap_or(0);
        let done = self.0.position().min(total);
        if total == 0 {
            return String::new();
        }
        let left = self.0.elapsed().mul_f64(total.saturating_sub(done) as f64 / done.max(1) as f64);
        amounts_text(WorkUnit::Bytes, done, total, left)
    }

    /// Counts work that is done.
    pub fn add(&self, done: u64) {
        self.0.inc(done);
    }

    /// Removes the bar, before the result is printed.
    pub fn finish(&self) {
        self.0.finish_and_clear();
    }
}

/// The bar that was shown last.
static SHOWN: Mutex<Option<WeakProgressBar>> = Mutex::new(None);

fn lock_shown() -> MutexGuard<'static, Option<WeakProgressBar>> {
    SHOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Prints something while the bar is cleared, and draws the bar again below it.
pub fn beside_bar<T>(print: impl FnOnce() -> T) -> T {
    let shown = lock_shown().as_ref().and_then(WeakProgressBar::upgrade);
    print_beside(shown.as_ref(), print)
}

fn print_beside<T>(bar: Option<&ProgressBar>, print: impl FnOnce() -> T) -> T {
    match bar {
        Some(bar) => bar.suspend(print),
        None => print(),
    }
}

/// Standard error for log lines, which a bar would run into.
#[derive(Debug)]
pub struct StderrBesideBar;

impl Write for StderrBesideBar {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        beside_bar(|| std::io::stderr().write(bytes))
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stderr().flush()
    }
}

fn is_shown() -> bool {
    std::io::stderr().is_terminal()
}

/// Returns the line of a bar; it is empty while the command has not run for long, and if the size of its work is not known.
fn bar_text(unit: WorkUnit, done: u64, total: u64, elapsed: Duration, left: Duration) -> String {
    if elapsed < DELAY || total == 0 {
        return String::new();
    }
    let part = (done as f64 / total.max(1) as f64).min(1.0);
    let full = (part * BAR_WIDTH as f64) as usize;
    format!("{}{}  {}", "█".repeat(full), "░".repeat(BAR_WIDTH - full), amounts_text(unit, done, total, left))
}

fn amounts_text(unit: WorkUnit, done: u64, total: u64, left: Duration) -> String {
    let amounts = match unit {
        WorkUnit::Steps(name) => format!("{done} of {total} {name}"),
        WorkUnit::Bytes => format!("{} of {} read", HumanBytes(done), HumanBytes(total)),
    };
    let left = if done == 0 { String::new() } else { format!(", {} left", units::format_duration(left.as_secs_f64())) };
    format!("{amounts}{left}")
}

/// A reader that counts the bytes read from it.
#[derive(Debug)]
pub struct MeteredReader<R> {
    reader: R,
    meter: ProgressMeter,
}

impl<R> MeteredReader<R> {
    /// Counts into a bar of bytes.
    pub fn new(reader: R, meter: &ProgressMeter) -> Self {
        Self { reader, meter: meter.clone() }
    }
}

impl<R: Read> Read for MeteredReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.reader.read(buffer)?;
        self.meter.add(read as u64);
        Ok(read)
    }
}

/// Shows the progress of reading these topics from the returned archive.
pub fn over_archive(archive: Archive, topics: &[Topic]) -> Result<(Archive, ProgressMeter), LakeError> {
    // Reading lists the files, too, so a bar that is not shown is not worth a second listing.
    let listing = if is_shown() { archive.files()? } else { ArchiveListing::default() };
    Ok(over_files(archive, &listing, topics))
}

/// Like [`over_archive`], of these files.
pub fn over_files(archive: Archive, listing: &ArchiveListing, topics: &[Topic]) -> (Archive, ProgressMeter) {
    let files = listing.files.iter().filter(|file| topics.contains(&file.name.topic));
    let meter = ProgressMeter::bytes(files.map(|file| file.bytes).sum());
    let counted = meter.clone();
    (archive.observed(move |bytes| counted.add(bytes)), meter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_shows_how_much_is_done_and_how_long_the_rest_takes() {
        let text = |unit, done, elapsed| bar_text(unit, done, 8, elapsed, Duration::from_secs(90));
        assert_eq!(text(WorkUnit::Bytes, 2, Duration::ZERO), "", "most commands end sooner");
        assert_eq!(bar_text(WorkUnit::Steps("records"), 0, 0, DELAY, DELAY), "", "nobody knows how many");
        let shown = text(WorkUnit::Steps("runs"), 2, DELAY);
        assert!(shown.starts_with("██████░") && shown.contains("2 of 8 runs, ") && shown.ends_with(" left"), "{shown}");
        assert!(text(WorkUnit::Bytes, 8, DELAY).contains("8 B of 8 B read"));
        assert!(!text(WorkUnit::Steps("runs"), 0, DELAY).contains("left"), "nothing is known of the pace");
        assert!(text(WorkUnit::Steps("runs"), 9, DELAY).contains("9 of 8"), "more than was expected");
    }

    /// A terminal that keeps its output.
    #[derive(Debug, Clone, Default)]
    struct WrittenTerm(std::sync::Arc<Mutex<Vec<String>>>);

    impl WrittenTerm {
        fn push(&self, what: &str) {
            self.0.lock().unwrap().push(what.to_owned());
        }
    }

    impl indicatif::TermLike for WrittenTerm {
        fn width(&self) -> u16 {
            80
        }
        fn move_cursor_up(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }
        fn move_cursor_down(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }
        fn write_line(&self, line: &str) -> std::io::Result<()> {
            self.push(line);
            Ok(())
        }
        fn write_str(&self, text: &str) -> std::io::Result<()> {
            self.push(text);
            Ok(())
        }
        fn clear_line(&self) -> std::io::Result<()> {
            self.push("<cleared>");
            Ok(())
        }
        fn flush(&self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_is_printed_while_the_bar_is_cleared() {
        let term = WrittenTerm::default();
        let target = ProgressDrawTarget::term_like_with_hz(Box::new(term.clone()), 200);
        let bar = ProgressBar::with_draw_target(Some(8), target).with_style(ProgressStyle::with_template("BAR").unwrap());
        bar.tick();
        let drawn = term.0.lock().unwrap().len();
        assert!(term.0.lock().unwrap().iter().any(|text| text.contains("BAR")), "{term:?}");
        print_beside(Some(&bar), || term.push("a log line"));
        let written = term.0.lock().unwrap().split_off(drawn);
        let line = written.iter().position(|text| text == "a log line").unwrap();
        assert!(written[..line].iter().any(|text| text == "<cleared>"), "{written:?}");
        assert!(!written[..line].iter().any(|text| text.contains("BAR")), "{written:?}");
        assert_eq!(print_beside(None, || 7), 7);
    }

    #[test]
    fn a_metered_reader_counts_what_is_read() {
        let meter = ProgressMeter::bytes(8);
        let mut reader = MeteredReader::new(&b"12345678"[..], &meter);
        reader.read_exact(&mut [0; 6]).unwrap();
        assert_eq!((meter.0.position(), meter.0.length()), (6, Some(8)));
    }
}
