//! A tolerant reader of the Prometheus text format and what `OpenMetrics` adds to it. Pure.
//!
//! A line that cannot be understood costs that line. Comments, `HELP`, `TYPE`, `EOF` and exemplars are skipped. Names
//! may be quoted (`{"metric.name","label.name"="value"} 1`), or be in a label `__name__`, as in `promtool tsdb dump`.

use std::borrow::Cow;

use eadt_schemas::EventTime;

/// One sample line.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpositionSample<'a> {
    pub name: Cow<'a, str>,
    pub labels: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    /// May be NaN or infinite.
    pub value: f64,
    /// The value as written: integers above 2^53 do not survive as floats.
    pub written: &'a str,
    /// The time stamp as written, if the line has one.
    pub stamp: Option<&'a str>,
    /// Name and labels as written: what makes a series.
    pub series: &'a str,
}

impl ExpositionSample<'_> {
    /// Returns the value of a label, or `None` if it is absent or empty, which mean the same.
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(n, _)| *n == name).map(|(_, value)| &**value).filter(|value| !value.is_empty())
    }

    /// Returns the time of the sample, if the line has one that can be: seconds in `OpenMetrics`, else milliseconds. A
    /// stamp with a fraction is in seconds in either.
    pub fn time(&self, open_metrics: bool) -> Option<EventTime> {
        let stamp = self.stamp?;
        let value = parse_number(stamp)?;
        let millis = !open_metrics && stamp.bytes().all(|b| b.is_ascii_digit() || b"+-".contains(&b));
        let micros = value * if millis { 1e3 } else { 1e6 };
        (micros > 0.0 && micros < EventTime::MAX.micros() as f64).then(|| EventTime::from_micros(micros.round() as i64))
    }
}

/// A line that is not a sample.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct ExpositionError {
    /// Number of the line, from 1.
    pub line: usize,
    pub reason: &'static str,
}

/// Returns the samples of a text in order, with an error for each line that is none.
pub fn parse_samples(text: &str) -> impl Iterator<Item = Result<ExpositionSample<'_>, ExpositionError>> {
    text.split('\n').enumerate().filter_map(|(index, line)| {
        Some(parse_sample(line).transpose()?.map_err(|reason| ExpositionError { line: index + 1, reason }))
    })
}

/// Returns true if the text ends as `OpenMetrics` does, whose time stamps are in seconds.
pub fn is_open_metrics(text: &str) -> bool {
    text.trim_end().lines().next_back().is_some_and(is_end)
}

/// Returns true if this line ends an `OpenMetrics` text.
pub fn is_end(line: &str) -> bool {
    line.trim() == "# EOF"
}

/// A line of what `promtool query` prints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PrintedLine {
    /// A series, whose samples follow.
    Series,
    /// A sample as a line of the text format, in seconds; `is_moment`: its series is on the same line, as of one moment.
    Sample { text: String, is_moment: bool },
}

/// Reads what `promtool query range` and `instant` print: a series and `=>`, then `VALUE @[SECONDS]` on lines of their own, or behind
/// it.
#[derive(Debug, Default)]
pub(crate) struct PrintedQuery {
    series: Option<String>,
}

impl PrintedQuery {
    /// Reads one line. Returns `None` if it is of another form.
    pub(crate) fn read_line(&mut self, line: &str) -> Option<PrintedLine> {
        if let Some((series, value)) = split_printed_series(line) {
            let Some((value, seconds)) = value else {
                self.series = Some(series.to_owned());
                return Some(PrintedLine::Series);
            };
            return Some(PrintedLine::Sample { text: format!("{series} {value} {seconds}"), is_moment: true });
        }
        let (value, seconds) = printed_value(line)?;
        let series = self.series.as_ref()?;
        Some(PrintedLine::Sample { text: format!("{series} {value} {seconds}"), is_moment: false })
    }
}

/// A value and its time in seconds.
type PrintedValue<'a> = (&'a str, &'a str);

/// Returns the series of a line that `promtool query` prints, and the value behind it, if there is one.
pub(crate) fn split_printed_series(line: &str) -> Option<(&str, Option<PrintedValue<'_>>)> {
    let (series, rest) = line.rsplit_once("=>")?;
    let series = series.trim();
    let is_series = series.ends_with('}') || !series.is_empty() && name_end(series, true) == series.len();
    let value = if rest.trim().is_empty() { None } else { Some(printed_value(rest)?) };
    is_series.then_some((series, value))
}

/// Parses a value as printed: `250.1 @[1738576800.123]`.
fn printed_value(text: &str) -> Option<PrintedValue<'_>> {
    let (value, seconds) = text.trim().strip_suffix(']')?.split_once("@[")?;
    let (value, seconds) = (value.trim(), seconds.trim());
    (parse_number(value).is_some() && parse_number(seconds).is_some()).then_some((value, seconds))
}

/// Reads one line. Returns `None` for an empty line or a comment, and why it is no sample otherwise.
pub fn parse_sample(line: &str) -> Result<Option<ExpositionSample<'_>>, &'static str> {
    let line = line.trim_matches(|c: char| c.is_ascii_whitespace());
    if line.is_empty() || line.starts_with('#') { Ok(None) } else { read(line).map(Some) }
}

const MAX_LABELS: usize = 128;

fn name_end(text: &str, colon: bool) -> usize {
    let part =
        |(i, c): (usize, char)| c.is_ascii_alphabetic() || c == '_' || (colon && c == ':') || (i > 0 && c.is_ascii_digit());
    text.char_indices().find(|at| !part(*at)).map_or(text.len(), |(i, _)| i)
}

fn read(line: &str) -> Result<ExpositionSample<'_>, &'static str> {
    let end = name_end(line, true);
    let (bare, mut rest) = line.split_at(end);
    rest = rest.trim_start();
    let mut name = (end > 0).then_some(Cow::Borrowed(bare));
    let mut labels = Vec::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = self::parse_labels(inside, &mut name, &mut labels)?;
    } else if rest.len() + end == line.len() {
        return Err(if end == 0 { "no metric name" } else { "no value" });
    }
    let series = line[..line.len() - rest.len()].trim_end();
    if name.is_none()
        && let Some(at) = labels.iter().position(|(label, _)| label == "__name__")
    {
        name = Some(labels.remove(at).1);
    }
    let name = name.filter(|name| !name.is_empty()).ok_or("no metric name")?;
    let mut parts = rest.split_ascii_whitespace();
    let written = parts.next().ok_or("no value")?;
    let value = parse_number(written).ok_or("the value is not a number")?;
    let stamp = match parts.next() {
        None | Some("#") => None,
        Some(text) => {
            parse_number(text).filter(|stamp| stamp.is_finite()).ok_or("the time is not a number")?;
            match parts.next() {
                None | Some("#") => Some(text),
                Some(_) => return Err("something follows the time"),
            }
        }
    };
    Ok(ExpositionSample { name, labels, value, written, stamp, series })
}

/// Reads labels up to the closing brace, and a quoted metric name among them; returns what follows.
fn parse_labels<'a>(
    mut rest: &'a str,
    metric: &mut Option<Cow<'a, str>>,
    labels: &mut Vec<(Cow<'a, str>, Cow<'a, str>)>,
) -> Result<&'a str, &'static str> {
    loop {
        rest = rest.trim_start();
        if let Some(after) = rest.strip_prefix('}') {
            return Ok(after);
        }
        let (name, after, is_quoted) = if let Some(inside) = rest.strip_prefix('"') {
            let (name, after) = parse_quoted(inside)?;
            (name, after, true)
        } else {
            let (name, after) = rest.split_at(name_end(rest, false));
            (Cow::Borrowed(name), after, false)
        };
        if name.is_empty() {
            return Err("no label name");
        }
        rest = after.trim_start();
        if let Some(after) = rest.strip_prefix('=') {
            let after = after.trim_start().strip_prefix('"').ok_or("a label value is not quoted")?;
            let (value, after) = parse_quoted(after)?;
            if labels.len() == MAX_LABELS {
                return Err("too many labels");
            }
            labels.push((name, value));
            rest = after.trim_start();
        } else if is_quoted && metric.is_none() {
            *metric = Some(name);
        } else {
            return Err("no = after a label name");
        }
        rest = match rest.strip_prefix(',') {
            Some(after) => after,
            None if rest.starts_with('}') => rest,
            None => return Err("no comma between labels"),
        };
    }
}

fn parse_quoted(text: &str) -> Result<(Cow<'_, str>, &str), &'static str> {
    let mut owned: Option<String> = None;
    let mut from = 0;
    let mut chars = text.char_indices();
    while let Some((i, c)) = chars.next() {
        match c {
            '"' => {
                let tail = &text[from..i];
                let value = match owned {
                    None => Cow::Borrowed(tail),
                    Some(head) => Cow::Owned(head + tail),
                };
                return Ok((value, &text[i + 1..]));
            }
            '\\' => {
                let (at, escaped) = chars.next().ok_or("a label value does not end")?;
                let head = owned.get_or_insert_default();
                head.push_str(&text[from..i]);
                match escaped {
                    'n' => head.push('\n'),
                    '\\' | '"' => head.push(escaped),
                    // An unknown escape is kept unchanged, as in Prometheus.
                    other => head.extend(['\\', other]),
                }
                from = at + escaped.len_utf8();
            }
            _ => {}
        }
    }
    Err("a label value does not end")
}

fn parse_number(text: &str) -> Option<f64> {
    match text {
        "NaN" | "nan" | "+NaN" | "-NaN" => Some(f64::NAN),
        "+Inf" | "Inf" | "+inf" | "inf" => Some(f64::INFINITY),
        "-Inf" | "-inf" => Some(f64::NEG_INFINITY),
        // Rust also reads "infinity" and the like, which are no numbers here.
        _ if text.bytes().all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b)) => text.parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use eadt_testing::cases;
    use proptest::prelude::*;

    use super::*;

    fn one(line: &str) -> Result<ExpositionSample<'_>, ExpositionError> {
        parse_samples(line).next().expect("a line")
    }

    #[test]
    fn reads_what_exporters_write() {
        let s = one("a:b_1 { x=\"1\" , y = \"q\\\"\\\\\\n\\d\", } 1.5e3 1700000000123").unwrap();
        let millis = |s: &ExpositionSample<'_>| s.time(false).map(|time| time.micros() / 1000);
        assert_eq!((&*s.name, s.value, millis(&s)), ("a:b_1", 1500.0, Some(1_700_000_000_123)));
        assert_eq!((s.label("x"), s.label("y"), s.label("z")), (Some("1"), Some("q\"\\\n\\d"), None));
        assert_eq!(s.series, "a:b_1 { x=\"1\" , y = \"q\\\"\\\\\\n\\d\", }");
        assert_eq!(one("up 1\r").unwrap().value, 1.0);
        assert_eq!(one("up{} +Inf").unwrap().value, f64::INFINITY);
        assert!(one("up NaN").unwrap().value.is_nan());
        assert_eq!(one("c_total 5 # {trace=\"x\"} 1 2").unwrap().value, 5.0);
        assert_eq!(millis(&one("c_total 5 1700000000.5 # {trace=\"x\"} 1").unwrap()), Some(1_700_000_000_500));
        assert_eq!(one("m{s=\"ä}, 1\"} 2").unwrap().label("s"), Some("ä}, 1"));
        assert_eq!(parse_samples("# HELP x y\n\n# TYPE x gauge\n   \n# EOF\n").count(), 0);
    }

    #[test]
    fn a_name_may_be_quoted_or_a_label() {
        for (line, name, label) in [
            ("{\"k8s.node.cpu\",\"k8s.node.name\"=\"n1\"} 0.5 1", "k8s.node.cpu", Some(("k8s.node.name", "n1"))),
            ("{\"DCGM_FI_DEV_POWER_USAGE\", gpu=\"0\"} 1", "DCGM_FI_DEV_POWER_USAGE", Some(("gpu", "0"))),
            ("{gpu=\"0\",\"last.name\"} 1", "last.name", Some(("gpu", "0"))),
            ("m{\"gpu\"=\"0\"} 1", "m", Some(("gpu", "0"))),
            ("{__name__=\"up\",gpu=\"0\"} 1 1700000000000", "up", Some(("gpu", "0"))),
            ("{\"a \\\"b\"} 1", "a \"b", None),
        ] {
            let s = one(line).unwrap();
            assert_eq!(s.name, name, "{line}");
            assert_eq!(label.and_then(|(name, _)| s.label(name)), label.map(|(_, value)| value), "{line}");
        }
    }

    #[test]
    fn what_promtool_prints_is_read_line_by_line() {
        let mut printed = PrintedQuery::default();
        let sample = |text: &str, is_moment| Some(PrintedLine::Sample { text: text.to_owned(), is_moment });
        for (line, expected) in [
            ("250 @[1738576800]", None),
            ("power{gpu=\"0\", a=\"x => y\"} =>", Some(PrintedLine::Series)),
            ("250.1 @[1738576800]", sample("power{gpu=\"0\", a=\"x => y\"} 250.1 1738576800", false)),
            ("NaN @[1738576815.123]", sample("power{gpu=\"0\", a=\"x => y\"} NaN 1738576815.123", false)),
            ("up => ", Some(PrintedLine::Series)),
            ("1 @[1738576800]", sample("up 1 1738576800", false)),
            ("up{} => 1 @[1738576800]", sample("up{} 1 1738576800", true)),
            ("{gpu=\"0\"} =>", Some(PrintedLine::Series)),
            ("up 1 1738576800000", None),
            ("# HELP up a => b", None),
            ("up{a=\"=>\"} 1", None),
            ("1 @[x]", None),
            ("", None),
        ] {
            assert_eq!(printed.read_line(line), expected, "{line}");
        }
    }

    #[test]
    fn open_metrics_has_seconds() {
        let at = |line: &str, open| one(line).unwrap().time(open).map(EventTime::micros);
        assert_eq!(at("m 1 1700000000", true), Some(1_700_000_000_000_000));
        assert_eq!(at("m 1 1700000000123", false), Some(1_700_000_000_123_000));
        assert_eq!(at("m 1 1.7e9", false), Some(1_700_000_000_000_000));
        assert_eq!((at("m 1", true), at("m 1 -5", false), at("m 1 1e300", true)), (None, None, None));
        assert!(is_open_metrics("m 1\n# EOF\n") && is_open_metrics("# EOF") && !is_open_metrics("m 1\n") && !is_open_metrics(""));
    }

    #[test]
    fn a_malformed_line_costs_that_line() {
        let bad = [
            "1up 2",
            "up",
            "up{",
            "up{a}",
            "up{a=b} 1",
            "up{a=\"b} 1",
            "up{a=\"b\"c=\"d\"} 1",
            "up x",
            "up 1 x",
            "up 1 2 3",
            "up infinity",
            "{a=\"b\"} 1",
            "{} 1",
            "{\"\"} 1",
            "{\"a\",\"b\"} 1",
            "m{\"a\"} 1",
            "m{gpu} 1",
            "up{a=\"\\",
            "up 0x10",
        ];
        let text = format!("good 1\n{}\ngood 2", bad.join("\n"));
        let (good, malformed): (Vec<_>, Vec<_>) = parse_samples(&text).partition(Result::is_ok);
        assert_eq!((good.len(), malformed.len()), (2, bad.len()), "{good:?}");
        assert_eq!(malformed[0].as_ref().unwrap_err().line, 2);
    }

    proptest! {
        #![proptest_config(cases(512))]
        #[test]
        fn never_panics_and_never_merges_lines(text in "[ -~\\n\\t{}\"\\\\=,#é0-9]{0,200}") {
            let lines = text.split('\n').filter(|l| { let l = l.trim_matches(|c: char| c.is_ascii_whitespace()); !l.is_empty() && !l.starts_with('#') }).count();
            prop_assert_eq!(parse_samples(&text).count(), lines);
        }

        #[test]
        fn reads_back_what_it_is_given(name in "[a-zA-Z_:][a-zA-Z0-9_:]{0,10}", labels in prop::collection::vec(("[a-zA-Z_][a-z0-9_]{0,8}", "\\PC{0,12}"), 0..5), value in any::<f64>(), time in prop::option::of(1_i64..4_000_000_000_000)) {
            let quoted: Vec<_> = labels.iter().map(|(n, v)| format!("{n}=\"{}\"", v.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))).collect();
            let time_text = time.map(|t| format!(" {t}")).unwrap_or_default();
            let value_text = if value.is_nan() { "NaN".to_owned() } else if value.is_infinite() { if value > 0.0 { "+Inf".into() } else { "-Inf".into() } } else { format!("{value:e}") };
            let line = format!("{name}{{{}}} {value_text}{time_text}", quoted.join(","));
            let sample = one(&line).unwrap();
            prop_assert_eq!(&*sample.name, name.as_str());
            prop_assert!(sample.value == value || value.is_nan() && sample.value.is_nan());
            prop_assert_eq!(sample.time(false).map(EventTime::micros), time.map(|time| time * 1000));
            let read: Vec<_> = sample.labels.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
            prop_assert_eq!(read, labels);
        }
    }
}
