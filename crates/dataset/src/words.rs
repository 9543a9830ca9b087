use serde::Serialize;

/// Returns a value of an enumeration as it is written in events.
pub(crate) fn word(value: impl Serialize) -> String {
    let text = serde_json::to_value(value).expect("an enumeration is JSON");
    text.as_str().expect("the enumerations of events are texts").to_owned()
}
