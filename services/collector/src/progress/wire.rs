//! Parsing of jobs' requests: from bytes to events, or to a rejection. Pure.
//!
//! Stricter than for the log: there unknown fields come from another version; here they are typing errors, and the sender
//! still receives the error.

use std::borrow::Cow;
use std::fmt;
use std::sync::LazyLock;

use axum::http::StatusCode;
use eadt_schemas::EventTime;
use eadt_schemas::decode::DecodableEvent;
use eadt_schemas::latest::{JobLifecycle, TrainingProgress};
use serde::de::{Deserialize, MapAccess, Visitor};
use serde::{Deserializer, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::precision;

/// The reason why a request was not accepted.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Rejection {
    #[serde(skip)]
    pub status: StatusCode,
    /// The problem, and the remedy.
    pub error: String,
    /// Path of the field to blame.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// Index of the event in the batch, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<usize>,
    /// Every event of a batch, if none of several was accepted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<RejectedEvent>,
    /// The connection ends with the answer.
    #[serde(skip)]
    pub closes: bool,
    /// The method that the path has.
    #[serde(skip)]
    pub allows: &'static str,
}

/// One event of a batch that was not accepted.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RejectedEvent {
    /// Index of the event in the batch, from 0.
    pub index: usize,
    /// The status that it alone would have.
    pub status: u16,
    /// The problem, and the remedy.
    pub error: String,
    /// Path of the field to blame.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
}

impl RejectedEvent {
    pub fn new(index: usize, rejection: &Rejection) -> Self {
        let Rejection { status, error, field, .. } = rejection;
        Self { index, status: status.as_u16(), error: error.clone(), field: field.clone() }
    }
}

impl Rejection {
    pub fn new(status: StatusCode, error: impl Into<String>) -> Self {
        Self { status, error: error.into(), field: None, index: None, refused: Vec::new(), closes: false, allows: "POST" }
    }

    fn of_field(field: &str, error: impl Into<String>) -> Self {
        Self { field: Some(field.to_owned()), ..Self::new(StatusCode::UNPROCESSABLE_ENTITY, error) }
    }
}

/// Largest difference of times from this machine's clock, in seconds. `None` if there is no limit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClockSkewLimits {
    pub past: Option<f64>,
    pub future: Option<f64>,
}

/// An event as it came.
#[derive(Debug)]
pub struct ReportedEvent {
    pub event: TrainingProgress,
    /// The sender gave the time; otherwise it is the time of arrival.
    pub timed: bool,
}

/// The records of a request, each judged for itself.
#[derive(Debug)]
pub struct ProgressRequest {
    pub records: Vec<Result<ReportedEvent, Rejection>>,
    /// They came in an array.
    pub is_batch: bool,
    /// Values that are no numbers (`NaN`, `"Infinity"`, `1e999`), which are taken as absent.
    pub absent: usize,
}

/// Reads a request: one object, or an array of at most `limit`. The error is of the whole request.
pub fn events(body: &[u8], limit: usize) -> Result<ProgressRequest, Rejection> {
    let (body, mut absent) = without_not_numbers(body);
    if body.trim_ascii_start().first() != Some(&b'[') {
        let records = vec![event(&body, None, &mut absent)];
        return Ok(ProgressRequest { records, is_batch: false, absent });
    }
    let texts = elements(&body).map_err(|error| Rejection::new(StatusCode::BAD_REQUEST, error))?;
    if texts.len() > limit {
        let error = format!("{} events in one request, at most {limit} are accepted; send smaller batches", texts.len());
        return Err(Rejection::new(StatusCode::PAYLOAD_TOO_LARGE, error));
    }
    let records = texts.iter().enumerate().map(|(index, text)| event(text, Some(index), &mut absent)).collect();
    Ok(ProgressRequest { records, is_batch: true, absent })
}

/// Returns whether a text is no finite number: `NaN`, `-Infinity`, or a number beyond the largest one, `1e999`.
fn is_not_a_number(text: &[u8]) -> bool {
    const WORDS: [&str; 3] = ["nan", "inf", "infinity"];
    /// No shorter number without an exponent is too large.
    const LONG: usize = 300;
    let unsigned = text.strip_prefix(b"-").or_else(|| text.strip_prefix(b"+")).unwrap_or(text);
    if WORDS.iter().any(|word| unsigned.eq_ignore_ascii_case(word.as_bytes())) {
        return true;
    }
    let may_be_large = text.len() > LONG || text.iter().any(|byte| b"eE".contains(byte));
    let number = || std::str::from_utf8(text).ok()?.parse::<f64>().ok();
    may_be_large && unsigned.first().is_some_and(u8::is_ascii_digit) && number().is_some_and(f64::is_infinite)
}

/// Replaces values outside texts that are no numbers, as Python and JavaScript write them, by `null`. Returns how many.
pub fn without_not_numbers(body: &[u8]) -> (Cow<'_, [u8]>, usize) {
    let mut replaced: Option<Vec<u8>> = None;
    let (mut copied, mut count) = (0, 0);
    let mut scan = JsonStringScanner::default();
    let mut at = 0;
    while at < body.len() {
        let is_text = scan.step(body[at]);
        let is_literal = |byte: &&u8| byte.is_ascii_alphanumeric() || b"+-.".contains(*byte);
        let length = if is_text { 0 } else { body[at..].iter().take_while(is_literal).count() };
        let end = at + length;
        if is_not_a_number(&body[at..end]) {
            let out = replaced.get_or_insert_default();
            out.extend_from_slice(&body[copied..at]);
            out.extend_from_slice(b"null");
            (copied, count) = (end, count + 1);
        }
        at = end.max(at + 1);
    }
    match replaced {
        None => (Cow::Borrowed(body), 0),
        Some(mut out) => {
            out.extend_from_slice(&body[copied..]);
            (Cow::Owned(out), count)
        }
    }
}

/// Follows where texts begin and end.
#[derive(Default)]
struct JsonStringScanner {
    in_text: bool,
    escaped: bool,
}

impl JsonStringScanner {
    /// Takes the next byte; returns true if it belongs to a text, quotes included.
    fn step(&mut self, byte: u8) -> bool {
        let was = self.in_text;
        if self.escaped {
            self.escaped = false;
        } else if was && byte == b'\\' {
            self.escaped = true;
        } else if byte == b'"' {
            self.in_text = !was;
        }
        was || self.in_text
    }
}

/// Splits an array into the texts of its elements: an element that is not JSON does not affect the others.
fn elements(array: &[u8]) -> Result<Vec<&[u8]>, &'static str> {
    let mut scan = JsonStringScanner::default();
    let mut depth = 0_usize;
    let mut elements = Vec::new();
    let mut from = 0;
    for (at, byte) in array.iter().enumerate() {
        if scan.step(*byte) {
            continue;
        }
        match byte {
            b'[' | b'{' => {
                depth += 1;
                if depth == 1 {
                    from = at + 1;
                }
            }
            b',' if depth == 1 => {
                elements.push(&array[from..at]);
                from = at + 1;
            }
            b']' | b'}' => {
                depth -= 1;
                if depth == 0 {
                    let last = &array[from..at];
                    if !elements.is_empty() || !last.trim_ascii().is_empty() {
                        elements.push(last);
                    }
                    let rest = array[at + 1..].trim_ascii();
                    return if rest.is_empty() { Ok(elements) } else { Err("something follows the array") };
                }
            }
            _ => {}
        }
    }
    Err("the array does not end: the request is cut off, or a bracket is missing")
}

/// Reads one event; adds to `absent` the texts in it that are no numbers.
fn event(text: &[u8], index: Option<usize>, absent: &mut usize) -> Result<ReportedEvent, Rejection> {
    if text.trim_ascii_start().first() != Some(&b'{') {
        // A list would be read field by field in the order of declaration, which is never intended.
        parse::<&RawValue>(text, index)?;
        return Err(Rejection { index, ..Rejection::new(StatusCode::UNPROCESSABLE_ENTITY, "not a JSON object") });
    }
    let ObjectMembers(members) = parse(text, index)?;
    if let Some((unknown, _)) = members.iter().find(|(key, _)| !FIELDS.contains(key)) {
        let shown: String = unknown.chars().take(NEAR_CHARS).collect();
        let error = match nearest(unknown) {
            Some(field) => format!("unknown field; did you mean {field}?"),
            None => format!("unknown field; known are {}", FIELDS.join(", ")),
        };
        return Err(Rejection { index, ..Rejection::of_field(&shown, error) });
    }
    let numbers = without_number_texts(&members, absent);
    let mut event: TrainingProgress = parse(numbers.as_deref().map_or(text, str::as_bytes), index)?;
    event.precision = event.precision.map(|name| precision::event_name(&name));
    Ok(ReportedEvent { event, timed: members.iter().any(|(key, _)| key == "time") })
}

/// Returns an object with `null` for each text of a number field that is no number, as `"NaN"`; `None` if there is
/// none. Adds how many to `absent`.
fn without_number_texts(members: &[(String, &RawValue)], absent: &mut usize) -> Option<String> {
    let has_text = |(name, value): &(String, &RawValue)| value.get().contains('"') && NUMBER_FIELDS.contains(name);
    if !members.iter().any(has_text) {
        return None;
    }
    let before = *absent;
    let mut shown = Vec::new();
    for member in members {
        let (name, value) = (Value::from(member.0.as_str()), member.1.get());
        let value = if has_text(member) { null_number_texts(value, absent) } else { value.to_owned() };
        shown.push(format!("{name}:{value}"));
    }
    (*absent > before).then(|| format!("{{{}}}", shown.join(",")))
}

/// Returns a JSON value with `null` for a text that is no number, also as an entry of a list.
fn null_number_texts(value: &str, absent: &mut usize) -> String {
    let Ok(entries) = serde_json::from_str::<Vec<&RawValue>>(value) else { return null_number_text(value, absent).to_owned() };
    let entries: Vec<&str> = entries.into_iter().map(|entry| null_number_text(entry.get(), absent)).collect();
    format!("[{}]", entries.join(","))
}

fn null_number_text<'a>(value: &'a str, absent: &mut usize) -> &'a str {
    let text = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    if !text.is_some_and(|text| is_not_a_number(text.trim().as_bytes())) {
        return value;
    }
    *absent += 1;
    "null"
}

/// Returns the fields of the event with their schemas.
fn field_schemas() -> Vec<(String, Value)> {
    let schema = schemars::schema_for!(TrainingProgress);
    let properties = schema.get("properties").and_then(Value::as_object);
    properties.into_iter().flatten().map(|(name, schema)| (name.clone(), schema.clone())).collect()
}

/// Every field of the event.
static FIELDS: LazyLock<Vec<String>> = LazyLock::new(|| field_schemas().into_iter().map(|(name, _)| name).collect());

/// The fields that are numbers, or lists of them.
static NUMBER_FIELDS: LazyLock<Vec<String>> = LazyLock::new(|| {
    fn is_number(schema: &Value) -> bool {
        let is_kind = |kind: &Value| kind == "number" || kind == "integer";
        let is_own = match schema.get("type") {
            Some(Value::Array(kinds)) => kinds.iter().any(is_kind),
            Some(kind) => is_kind(kind),
            None => false,
        };
        is_own || schema.get("items").is_some_and(is_number)
    }
    field_schemas().into_iter().filter(|(_, schema)| is_number(schema)).map(|(name, _)| name).collect()
});

/// No field has a longer name that anything else could be near to: it bounds what comparing costs, and what is repeated.
const NEAR_CHARS: usize = 64;

fn nearest(unknown: &str) -> Option<&'static str> {
    if unknown.len() > NEAR_CHARS {
        return None;
    }
    let distance = |field: &String| strsim::damerau_levenshtein(field, &unknown.to_lowercase());
    let field = FIELDS.iter().min_by_key(|field| distance(field))?;
    (distance(field) <= 1 + unknown.len() / 3).then_some(field.as_str())
}

/// The keys of an object and their values as they came.
struct ObjectMembers<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for ObjectMembers<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectMembersVisitor;
        impl<'de> Visitor<'de> for ObjectMembersVisitor {
            type Value = ObjectMembers<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ObjectMembers<'de>, A::Error> {
                let mut members = Vec::new();
                while let Some(key) = map.next_key()? {
                    members.push((key, map.next_value()?));
                }
                Ok(ObjectMembers(members))
            }
        }
        deserializer.deserialize_map(ObjectMembersVisitor)
    }
}

/// Reads JSON; the rejection has the path of the field where it went wrong.
pub fn parse<'a, T: Deserialize<'a>>(text: &'a [u8], index: Option<usize>) -> Result<T, Rejection> {
    let mut reader = serde_json::Deserializer::from_slice(text);
    let rejection = |error: serde_path_to_error::Error<serde_json::Error>| {
        let path = error.path().to_string();
        let inner = error.inner();
        let status = if inner.is_data() { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::BAD_REQUEST };
        let error = inner.to_string();
        // A key that comes twice is found before its value is entered.
        let twice = || error.strip_prefix("duplicate field `")?.split('`').next().map(str::to_owned);
        let field = if matches!(path.as_str(), "." | "?") { twice() } else { Some(path) };
        Rejection { field, index, ..Rejection::new(status, error) }
    };
    let value = serde_path_to_error::deserialize(&mut reader).map_err(rejection)?;
    reader.end().map_err(|error| Rejection { index, ..Rejection::new(StatusCode::BAD_REQUEST, error.to_string()) })?;
    Ok(value)
}

/// Refuses times out of range and impossible values.
pub fn check(event: &TrainingProgress, now: EventTime, range: ClockSkewLimits) -> Result<(), Rejection> {
    for (field, time) in [("time", Some(event.time)), ("checkpoint_time", event.checkpoint_time)] {
        let Some(time) = time else { continue };
        let ahead = time.seconds_since(now);
        if let Some(limit) = range.future.filter(|limit| ahead > *limit) {
            let error = format!(
                "{time} is too far in the future: {} ahead of this machine's clock ({now}), and {} are accepted \
                 (collector.progress.max_future_seconds); check the clocks",
                span(ahead),
                span(limit)
            );
            return Err(Rejection::of_field(field, error));
        }
        // A job may rightly report that its last checkpoint is old.
        if let Some(limit) = range.past.filter(|limit| field == "time" && -ahead > *limit) {
            let error = format!(
                "{time} is too old: {} behind this machine's clock ({now}), and {} are accepted (collector.progress.max_past_seconds); \
                 check the clocks, or publish a recording with eadt collector --recording",
                span(-ahead),
                span(limit)
            );
            return Err(Rejection::of_field(field, error));
        }
    }
    event.check().map_err(|refusal| {
        let field = refusal.field.map(str::to_owned);
        Rejection { field, ..Rejection::new(StatusCode::UNPROCESSABLE_ENTITY, refusal.detail) }
    })
}

/// Refuses an event that contains nothing about the job.
pub fn check_content(event: &TrainingProgress) -> Result<(), Rejection> {
    if has_content(event) {
        return Ok(());
    }
    let error = "it has nothing about the job: add a counter (samples_total, tokens_total, steps_total), a rate, loss, another \
                 reading, a span, or phase started or finished";
    Err(Rejection::new(StatusCode::UNPROCESSABLE_ENTITY, error))
}

/// Returns whether the event contains more than its sender and time.
fn has_content(event: &TrainingProgress) -> bool {
    let TrainingProgress { time, rank, scope, origin, .. } = *event;
    let (workload, collector) = (event.workload.clone(), event.collector.clone());
    *event
        != TrainingProgress {
            time,
            rank,
            scope,
            origin,
            workload,
            collector,
            phase: JobLifecycle::Progress,
            ..TrainingProgress::default()
        }
}

/// Returns a length of time in words.
fn span(seconds: f64) -> String {
    match seconds {
        s if s < 120.0 => format!("{s:.3} s").replace(".000", ""),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.0} h", s / 3600.0),
        s if s < 63_115_200.0 => format!("{:.0} days", s / 86_400.0),
        s => format!("{:.0} years", s / 31_557_600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(body: &str) -> Rejection {
        events(body.as_bytes(), 10).unwrap().records.remove(0).unwrap_err()
    }

    #[test]
    fn unknown_fields_are_named_with_the_nearest_known_one() {
        for (field, near) in [
            ("sample_total", "did you mean samples_total?"),
            ("Samples_Total", "did you mean samples_total?"),
            ("loss_", "did you mean loss?"),
            ("step_remaining", "did you mean steps_remaining?"),
        ] {
            let rejection = refused(&format!("{{\"workload\":\"n/a\",\"{field}\":1}}"));
            assert_eq!((rejection.status.as_u16(), rejection.field.as_deref()), (422, Some(field)));
            assert!(rejection.error.contains(near), "{field}: {}", rejection.error);
        }
        let far = refused(r#"{"workload":"n/a","favourite_colour":"red"}"#);
        assert!(far.error.contains("known are ") && far.error.contains("gradient_norm"), "{}", far.error);
        // A long name is repeated in part, and not compared.
        let long = refused(&format!("{{\"{}\":1}}", "x".repeat(100_000)));
        assert!(long.field.unwrap().len() == NEAR_CHARS && long.error.len() < 1000);
    }

    #[test]
    fn what_is_no_number_is_absent_and_texts_stay_as_they_are() {
        for (body, expected, count) in [
            (r#"{"loss": NaN}"#, r#"{"loss": null}"#, 1),
            (r#"{"loss":-Infinity,"epoch":Infinity}"#, r#"{"loss":null,"epoch":null}"#, 2),
            (r#"[{"a":nan},{"a":-nan},{"a":+Inf},{"a":inf}]"#, r#"[{"a":null},{"a":null},{"a":null},{"a":null}]"#, 4),
            (r#"{"span":"NaN","b":"\"NaN","c":"\\","d":NaN}"#, r#"{"span":"NaN","b":"\"NaN","c":"\\","d":null}"#, 1),
            (r#"{"a":-1,"b":1e-5,"c":true,"d":null,"e":1e+5}"#, r#"{"a":-1,"b":1e-5,"c":true,"d":null,"e":1e+5}"#, 0),
            (r#"{"a":1e999,"b":[-1E+400,1e308]}"#, r#"{"a":null,"b":[null,1e308]}"#, 2),
            (format!("[{}]", "9".repeat(310)).as_str(), "[null]", 1),
            (r#"{"a":1e-999,"b":1e999x,"c":nano}"#, r#"{"a":1e-999,"b":1e999x,"c":nano}"#, 0),
            ("NaNNaN", "NaNNaN", 0),
            ("-", "-", 0),
            ("", "", 0),
        ] {
            let (cleaned, absent) = without_not_numbers(body.as_bytes());
            assert_eq!((std::str::from_utf8(&cleaned).unwrap(), absent), (expected, count), "{body}");
        }
    }

    #[test]
    fn a_text_that_is_no_number_costs_its_field_alone() {
        for (fields, absent) in [
            (r#""loss":"NaN""#, 1),
            (r#""learning_rate":"-Infinity","loss_scale":" inf ""#, 2),
            (r#""layers":"nan","plasticity":["NaN",0.5,null],"loss":NaN"#, 3),
            (r#""gradient_norm":"1e999""#, 1),
            (r#""span":"NaN""#, 0),
        ] {
            let body = format!("{{\"workload\":\"n/a\",\"steps_total\":5,{fields}}}");
            for (body, records) in [(body.clone(), 1), (format!("[{body},{body}]"), 2)] {
                let request = events(body.as_bytes(), 10).unwrap();
                assert_eq!(request.absent, absent * records, "{body}");
                for record in request.records {
                    let event = record.unwrap().event;
                    let read = (event.loss, event.learning_rate, event.loss_scale, event.gradient_norm, event.layers);
                    assert_eq!((event.steps_total, read), (Some(5.0), (None, None, None, None, None)), "{body}");
                    assert_eq!(event.plasticity.is_some(), fields.contains("plasticity"), "{body}");
                    assert_eq!(event.span.as_deref(), fields.contains("span").then_some("NaN"), "{body}");
                }
            }
        }
        // Any other text is no slip of a framework, and a field without which an event is none stays refused.
        for (body, field) in [
            (r#"{"workload":"n/a","loss":"low"}"#, "loss"),
            (r#"{"workload":"n/a","loss":"0.5"}"#, "loss"),
            (r#"{"workload":"n/a","rank":"NaN","loss":1}"#, "rank"),
            (r#"{"workload":"n/a","plasticity":["x"]}"#, "plasticity[0]"),
            (r#"{"workload":"n/a","loss":"NaN","loss":1}"#, "loss"),
        ] {
            let rejection = refused(body);
            assert_eq!((rejection.status.as_u16(), rejection.field.as_deref()), (422, Some(field)), "{body}");
        }
    }

    #[test]
    fn a_number_out_of_range_is_refused_in_short_words() {
        let now: EventTime = "2026-01-02T03:04:05Z".parse().unwrap();
        for (field, value, message) in [
            ("learning_rate", -1.0, "field learning_rate: -1 is less than 0"),
            ("gradient_norm", -1e300, "field gradient_norm: -1e300 is less than 0"),
            ("samples_total", 1e300, "field samples_total: 1e300 is not between 0 and 1000000000000000000"),
            ("epoch", -0.5, "field epoch: -0.5 is not between 0 and 1000000000"),
            ("plasticity", -0.5, "field plasticity: -0.5 is less than 0"),
        ] {
            let value = if field == "plasticity" { format!("[null,0.5,{value:e}]") } else { format!("{value:e}") };
            let body = format!("{{\"workload\":\"n/a\",\"collector\":\"c\",\"time\":\"{now}\",\"{field}\":{value}}}");
            let event = events(body.as_bytes(), 1).unwrap().records.remove(0).unwrap().event;
            let rejection = check(&event, now, ClockSkewLimits { past: None, future: None }).unwrap_err();
            assert_eq!((rejection.error.as_str(), rejection.field.as_deref()), (message, Some(field)));
        }
    }

    #[test]
    fn an_array_is_split_whatever_its_elements_are() {
        let split = |text: &'static str| -> Result<Vec<&str>, &str> {
            Ok(elements(text.as_bytes())?.into_iter().map(|part| std::str::from_utf8(part).unwrap().trim()).collect())
        };
        assert_eq!(split(" [ ] "), Ok(vec![]));
        assert_eq!(
            split(r#"[{"a":[1,2],"b":"]},["}, 7 ,{"c":{"d":"\","}}]"#),
            Ok(vec![r#"{"a":[1,2],"b":"]},["}"#, "7", r#"{"c":{"d":"\","}}"#])
        );
        assert_eq!(split("[{:},]"), Ok(vec!["{:}", ""]));
        for bad in ["[", "[1", "[\"", "[{]", "[1] x", "[1][2]"] {
            assert!(split(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn every_field_is_known() {
        let event = serde_json::json!({"workload": "n/a", "time": "2026-01-02T03:04:05Z", "collector": "c", "rank": 1,
            "scope": "rank", "origin": "measured", "phase": "progress", "last": false, "span": "x", "samples_total": 1,
            "tokens_total": 1, "steps_total": 1, "samples_per_second": 1, "tokens_per_second": 1, "loss": 1, "epoch": 1,
            "checkpoint_time": "2026-01-02T03:04:05Z", "steps_remaining": 1, "remaining_seconds": 1, "global_batch_size": 1,
            "world_size": 1, "backend": "nccl", "precision": "bf16", "overflow_skips_total": 1, "gradient_norm": 1,
            "frozen_prefix_layers": 4, "mps_thread_percentage": 50, "validation_loss": 1, "learning_rate": 0.1, "loss_scale": 2,
            "layers": 6, "plasticity": [null, 0.5], "live_knobs": ["precision"], "decision_id": "d", "directive_refused": "why"});
        assert_eq!(event.as_object().unwrap().len(), FIELDS.len());
        let sent = events(event.to_string().as_bytes(), 1).unwrap().records.remove(0).unwrap();
        assert!(sent.timed && has_content(&sent.event));
    }

    #[test]
    fn an_event_without_content_is_no_progress() {
        for (rest, is_progress) in [
            ("", false),
            (r#","rank":3,"scope":"rank","origin":"imported","collector":"me","time":"2026-01-02T03:04:05Z""#, false),
            (r#","phase":"progress""#, false),
            (r#","loss":null"#, false),
            (r#","phase":"started""#, true),
            (r#","last":true"#, true),
            (r#","loss":0"#, true),
            (r#","span":"""#, true),
        ] {
            let sent = events(format!("{{\"workload\":\"n/a\"{rest}}}").as_bytes(), 1).unwrap().records.remove(0).unwrap();
            assert_eq!(check_content(&sent.event).is_ok(), is_progress, "{rest}");
        }
    }

    #[test]
    fn times_are_accepted_as_far_as_the_limits_go() {
        let now: EventTime = "2026-01-02T03:04:05Z".parse().unwrap();
        let range = ClockSkewLimits { past: Some(604_800.0), future: Some(60.0) };
        let at = |time: EventTime, checkpoint_time| TrainingProgress {
            time,
            checkpoint_time,
            workload: "n/a".into(),
            collector: "c".into(),
            ..TrainingProgress::default()
        };
        let far = |text: &str| text.parse::<EventTime>().unwrap();
        for (event, part) in [
            (at(now.plus_seconds(60.0), None), None),
            (at(now.plus_seconds(60.001), None), Some("60.001 s ahead")),
            (at(now.plus_seconds(-604_800.0), None), None),
            (at(now.plus_seconds(-604_801.0), None), Some("7 days behind")),
            (at(far("1970-01-01T00:00:00Z"), None), Some("56 years behind")),
            (at(far("0000-01-01T00:00:00Z"), None), Some("too old")),
            (at(far("9999-12-31T23:59:59Z"), None), Some("too far in the future")),
            (at(now, Some(far("2025-01-01T00:00:00Z"))), None),
            (at(now, Some(far("2027-01-01T00:00:00Z"))), Some("too far in the future")),
        ] {
            let result = check(&event, now, range);
            assert_eq!(result.as_ref().err().is_some(), part.is_some(), "{event:?}: {result:?}");
            if let (Some(part), Err(rejection)) = (part, result) {
                assert!(rejection.error.contains(part), "{rejection:?}");
            }
            assert!(check(&event, now, ClockSkewLimits { past: None, future: None }).is_ok() || event.time == EventTime::MIN);
        }
    }
}
