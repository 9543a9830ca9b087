//! A tolerant reader of the Prometheus text format (and what `OpenMetrics` adds to it).
//!
//! A line that cannot be understood costs that line. Comments, `HELP`, `TYPE`, `EOF` and exemplars are skipped.

use std::borrow::Cow;

/// One sample line.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample<'a> {
    pub name: &'a str,
    pub labels: Vec<(&'a str, Cow<'a, str>)>,
    /// May be NaN or infinite.
    pub value: f64,
    /// The value as written: integers above 2^53 do not survive as floats.
    pub written: &'a str,
    /// Milliseconds since the Unix epoch, where the exporter gives a time.
    pub timestamp_millis: Option<i64>,
    /// Name and labels as written: what makes a series.
    pub series: &'a str,
}

impl Sample<'_> {
    /// The value of a label; `None` where it is absent or empty, which mean the same.
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(n, _)| *n == name).map(|(_, value)| &**value).filter(|value| !value.is_empty())
    }
}

/// A line that is not a sample.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct Malformed {
    /// From 1.
    pub line: usize,
    pub reason: &'static str,
}

/// The samples of a text, in order, with the lines that are none.
pub fn samples(text: &str) -> impl Iterator<Item = Result<Sample<'_>, Malformed>> {
    text.split('\n').enumerate().filter_map(|(index, line)| {
        let line = line.trim_matches(|c: char| c.is_ascii_whitespace());
        if line.is_empty() || line.starts_with('#') {
            return None;
        }
        Some(sample(line).map_err(|reason| Malformed { line: index + 1, reason }))
    })
}

const MAX_LABELS: usize = 128;

fn name_end(text: &str, colon: bool) -> usize {
    let part =
        |(i, c): (usize, char)| c.is_ascii_alphabetic() || c == '_' || (colon && c == ':') || (i > 0 && c.is_ascii_digit());
    text.char_indices().find(|at| !part(*at)).map_or(text.len(), |(i, _)| i)
}

fn sample(line: &str) -> Result<Sample<'_>, &'static str> {
    let end = name_end(line, true);
    if end == 0 {
        return Err("no metric name");
    }
    let (name, mut rest) = line.split_at(end);
    rest = rest.trim_start();
    let mut labels = Vec::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = self::labels(inside, &mut labels)?;
    } else if rest.len() + end == line.len() {
        return Err("no value");
    }
    let series = line[..line.len() - rest.len()].trim_end();
    let mut parts = rest.split_ascii_whitespace();
    let written = parts.next().ok_or("no value")?;
    let value = number(written).ok_or("the value is not a number")?;
    let timestamp_millis = match parts.next() {
        None | Some("#") => None,
        Some(text) => {
            let time = timestamp(text).ok_or("the time is not a number")?;
            match parts.next() {
                None | Some("#") => Some(time),
                Some(_) => return Err("something follows the time"),
            }
        }
    };
    Ok(Sample { name, labels, value, written, timestamp_millis, series })
}

/// Reads labels up to the closing brace; returns what follows it.
fn labels<'a>(mut rest: &'a str, labels: &mut Vec<(&'a str, Cow<'a, str>)>) -> Result<&'a str, &'static str> {
    loop {
        rest = rest.trim_start();
        if let Some(after) = rest.strip_prefix('}') {
            return Ok(after);
        }
        let end = name_end(rest, false);
        if end == 0 {
            return Err("no label name");
        }
        let (name, after) = rest.split_at(end);
        let after = after.trim_start().strip_prefix('=').ok_or("no = after a label name")?;
        let after = after.trim_start().strip_prefix('"').ok_or("a label value is not quoted")?;
        let (value, after) = quoted(after)?;
        if labels.len() == MAX_LABELS {
            return Err("too many labels");
        }
        labels.push((name, value));
        rest = after.trim_start();
        rest = match rest.strip_prefix(',') {
            Some(after) => after,
            None if rest.starts_with('}') => rest,
            None => return Err("no comma between labels"),
        };
    }
}

fn quoted(text: &str) -> Result<(Cow<'_, str>, &str), &'static str> {
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
                    // As Prometheus does: an unknown escape stands for itself.
                    other => head.extend(['\\', other]),
                }
                from = at + escaped.len_utf8();
            }
            _ => {}
        }
    }
    Err("a label value does not end")
}

fn number(text: &str) -> Option<f64> {
    match text {
        "NaN" | "nan" | "+NaN" | "-NaN" => Some(f64::NAN),
        "+Inf" | "Inf" | "+inf" | "inf" => Some(f64::INFINITY),
        "-Inf" | "-inf" => Some(f64::NEG_INFINITY),
        // Rust also reads "infinity" and the like, which are no numbers here.
        _ if text.bytes().all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b)) => text.parse().ok(),
        _ => None,
    }
}

/// Milliseconds in the Prometheus format, seconds with a fraction in `OpenMetrics`.
fn timestamp(text: &str) -> Option<i64> {
    if let Ok(millis) = text.parse() {
        return Some(millis);
    }
    number(text).filter(|seconds| seconds.abs() < 1e12).map(|seconds| (seconds * 1000.0).round() as i64)
}

#[cfg(test)]
mod tests {
    use eadt_testing::cases;
    use proptest::prelude::*;

    use super::*;

    fn one(line: &str) -> Result<Sample<'_>, Malformed> {
        samples(line).next().expect("a line")
    }

    #[test]
    fn reads_what_exporters_write() {
        let s = one("a:b_1 { x=\"1\" , y = \"q\\\"\\\\\\n\\d\", } 1.5e3 1700000000123").unwrap();
        assert_eq!((s.name, s.value, s.timestamp_millis), ("a:b_1", 1500.0, Some(1_700_000_000_123)));
        assert_eq!((s.label("x"), s.label("y"), s.label("z")), (Some("1"), Some("q\"\\\n\\d"), None));
        assert_eq!(s.series, "a:b_1 { x=\"1\" , y = \"q\\\"\\\\\\n\\d\", }");
        assert_eq!(one("up 1\r").unwrap().value, 1.0);
        assert_eq!(one("up{} +Inf").unwrap().value, f64::INFINITY);
        assert!(one("up NaN").unwrap().value.is_nan());
        assert_eq!(one("c_total 5 # {trace=\"x\"} 1 2").unwrap().value, 5.0);
        assert_eq!(one("c_total 5 1700000000.5 # {trace=\"x\"} 1").unwrap().timestamp_millis, Some(1_700_000_000_500));
        assert_eq!(one("m{s=\"ä}, 1\"} 2").unwrap().label("s"), Some("ä}, 1"));
        assert_eq!(samples("# HELP x y\n\n# TYPE x gauge\n   \n# EOF\n").count(), 0);
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
            "up{a=\"\\",
            "up 0x10",
        ];
        let text = format!("good 1\n{}\ngood 2", bad.join("\n"));
        let (good, malformed): (Vec<_>, Vec<_>) = samples(&text).partition(Result::is_ok);
        assert_eq!((good.len(), malformed.len()), (2, bad.len()), "{good:?}");
        assert_eq!(malformed[0].as_ref().unwrap_err().line, 2);
    }

    proptest! {
        #![proptest_config(cases(512))]
        #[test]
        fn never_panics_and_never_merges_lines(text in "[ -~\\n\\t{}\"\\\\=,#é0-9]{0,200}") {
            let lines = text.split('\n').filter(|l| { let l = l.trim_matches(|c: char| c.is_ascii_whitespace()); !l.is_empty() && !l.starts_with('#') }).count();
            prop_assert_eq!(samples(&text).count(), lines);
        }

        #[test]
        fn reads_back_what_it_is_given(name in "[a-zA-Z_:][a-zA-Z0-9_:]{0,10}", labels in prop::collection::vec(("[a-zA-Z_][a-z0-9_]{0,8}", "\\PC{0,12}"), 0..5), value in any::<f64>(), time in prop::option::of(any::<i64>())) {
            let quoted: Vec<_> = labels.iter().map(|(n, v)| format!("{n}=\"{}\"", v.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))).collect();
            let time_text = time.map(|t| format!(" {t}")).unwrap_or_default();
            let value_text = if value.is_nan() { "NaN".to_owned() } else if value.is_infinite() { if value > 0.0 { "+Inf".into() } else { "-Inf".into() } } else { format!("{value:e}") };
            let line = format!("{name}{{{}}} {value_text}{time_text}", quoted.join(","));
            let sample = one(&line).unwrap();
            prop_assert_eq!(sample.name, name);
            prop_assert!(sample.value == value || value.is_nan() && sample.value.is_nan());
            prop_assert_eq!(sample.timestamp_millis, time);
            let read: Vec<_> = sample.labels.iter().map(|(n, v)| ((*n).to_owned(), v.to_string())).collect();
            prop_assert_eq!(read, labels);
        }
    }
}
