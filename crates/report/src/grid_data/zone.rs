//! Time zones in the names of columns.

use jiff::tz::{Offset, TimeZone};

use super::GridDataError;

/// Abbreviations of zones, in lower case, and the rule of those that belong together; the first that has all of a name's holds.
const ZONES: &[(&[&str], &str)] = &[
    (&["cet", "cest", "mez", "mesz"], "CET-1CEST,M3.5.0,M10.5.0/3"),
    (&["wet", "west"], "WET0WEST,M3.5.0/1,M10.5.0"),
    (&["eet", "eest"], "EET-2EEST,M3.5.0/3,M10.5.0/4"),
    (&["gmt", "bst"], "GMT0BST,M3.5.0/1,M10.5.0"),
    (&["trt"], "<+03>-3"),
    (&["msk"], "MSK-3"),
    (&["sast"], "SAST-2"),
    (&["sgt"], "<+08>-8"),
    (&["hkt"], "HKT-8"),
    (&["kst"], "KST-9"),
    (&["jst"], "JST-9"),
    (&["awst"], "AWST-8"),
    (&["aest"], "AEST-10"),
    (&["aest", "aedt"], "AEST-10AEDT,M10.1.0,M4.1.0/3"),
    (&["nzst", "nzdt"], "NZST-12NZDT,M9.5.0,M4.1.0/3"),
    (&["est"], "EST5"),
    (&["mst"], "MST7"),
    (&["pst"], "PST8"),
    (&["est", "edt", "et", "ept"], "EST5EDT,M3.2.0,M11.1.0"),
    (&["cst", "cdt", "ct", "cpt"], "CST6CDT,M3.2.0,M11.1.0"),
    (&["mst", "mdt", "mt", "mpt"], "MST7MDT,M3.2.0,M11.1.0"),
    (&["pst", "pdt", "pt", "ppt"], "PST8PDT,M3.2.0,M11.1.0"),
];

/// Abbreviations that several zones have: alone they are ambiguous.
const AMBIGUOUS: [&str; 3] = ["cst", "bst", "ist"];

/// First parts of names such as `America/New_York`.
const REGIONS: [&str; 12] =
    ["africa", "america", "antarctica", "arctic", "asia", "atlantic", "australia", "europe", "indian", "pacific", "etc", "us"];

/// Words of brackets that speak of a zone without naming it.
const ZONE_WORDS: [&str; 9] =
    ["local", "prevailing", "standard", "daylight", "eastern", "central", "mountain", "pacific", "timezone"];

/// Capitals that brackets may have and are no zone.
const NO_ZONES: [&str; 18] = [
    "ISO", "UNIX", "EPOCH", "HE", "HB", "START", "END", "FROM", "TO", "MTU", "PTU", "AM", "PM", "DAM", "RTM", "BEG", "PJM",
    "CAISO",
];

/// Returns the zone that a column's name has, as `Datetime (UTC)`, `MTU (CET/CEST)` and `Time (America/New_York)` do; else the given
/// one, else UTC. A zone that is not known is refused, unless one was given.
pub(super) fn zone_of(name: &str, stated: Option<&TimeZone>) -> Result<TimeZone, GridDataError> {
    let given = |zone: &str| {
        let problem = format!("column {name:?}: {zone:?} is no time zone that is known here");
        let remedy = "name it with --time-zone, such as Europe/Berlin or UTC";
        stated.cloned().ok_or_else(|| GridDataError::new(problem, remedy))
    };
    let mut parts = name.split(|c: char| !(c.is_ascii_alphanumeric() || "/_+-".contains(c)));
    if let Some(place) = parts.find(|part| is_place(part)) {
        return TimeZone::get(place).or_else(|_| given(place));
    }
    let lower = name.to_lowercase();
    let words: Vec<&str> = lower.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).collect();
    if words.contains(&"gmt") && words.contains(&"bst") {
        return rule_of(&["gmt", "bst"]).map_or_else(|| given("BST"), Ok);
    }
    if let Some(at) = lower.find("utc").or_else(|| lower.find("gmt")) {
        return from_utc(&lower[at + 3..]).map_or_else(|| given(&lower[at..]), Ok);
    }
    for content in name.split(['(', '[']).skip(1).filter_map(|rest| rest.split([')', ']']).next()) {
        let lower = content.to_lowercase();
        let words: Vec<&str> = lower.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).collect();
        let known: Vec<&str> = words.iter().copied().filter(|word| is_abbreviation(word)).collect();
        if let Some(zone) = rule_of(&known) {
            return Ok(zone);
        }
        if !known.is_empty() || words.iter().any(|word| ZONE_WORDS.contains(word)) || is_like_zone(content) {
            return given(content.trim());
        }
    }
    // `datetime_beginning_ept`; shorter ones are words of other meanings.
    let last = words.last().copied().filter(|word| word.len() > 2 && is_abbreviation(word));
    if let Some(last) = last {
        return rule_of(&[last]).map_or_else(|| given(last), Ok);
    }
    if words.contains(&"local") { given("local") } else { Ok(stated.cloned().unwrap_or(TimeZone::UTC)) }
}

/// Returns whether a column's name has a zone that is known here.
pub(super) fn names_zone(name: &str) -> bool {
    // No zone is this one.
    let Ok(offset) = Offset::from_seconds(1) else { return false };
    let none = TimeZone::fixed(offset);
    zone_of(name, Some(&none)).is_ok_and(|zone| zone != none)
}

/// Returns whether a text is a name such as `America/New_York`.
fn is_place(text: &str) -> bool {
    text.split_once('/').is_some_and(|(region, place)| {
        REGIONS.iter().any(|known| region.eq_ignore_ascii_case(known)) && place.starts_with(|c: char| c.is_ascii_alphabetic())
    })
}

fn is_abbreviation(word: &str) -> bool {
    AMBIGUOUS.contains(&word) || ZONES.iter().any(|(words, _)| words.contains(&word))
}

/// Returns the zone that has all of these abbreviations.
fn rule_of(words: &[&str]) -> Option<TimeZone> {
    if words.is_empty() || words.iter().all(|word| AMBIGUOUS.contains(word)) {
        return None;
    }
    let (_, rule) = ZONES.iter().find(|(known, _)| words.iter().all(|word| known.contains(word)))?;
    TimeZone::posix(rule).ok()
}

/// Returns UTC, or with `+1`, `+01:00` or `-0500` after it that offset; `None` if there is no such offset.
fn from_utc(rest: &str) -> Option<TimeZone> {
    let rest = rest.trim_start();
    let sign = match rest.chars().next() {
        Some('+') => 1,
        Some('-' | '−') => -1,
        _ => return Some(TimeZone::UTC),
    };
    let offset: String = rest.chars().skip(1).take_while(|c| c.is_ascii_digit() || *c == ':').collect();
    if offset.is_empty() {
        return Some(TimeZone::UTC);
    }
    let (hours, minutes) = match offset.split_once(':') {
        Some((hours, minutes)) => (hours, minutes),
        None if offset.len() == 4 => offset.split_at(2),
        None => (offset.as_str(), "0"),
    };
    let hours = hours.parse::<i32>().ok().filter(|hours| *hours <= 14)?;
    let minutes = minutes.parse::<i32>().ok().filter(|minutes| *minutes < 60)?;
    Some(TimeZone::fixed(Offset::from_seconds(sign * (3600 * hours + 60 * minutes)).ok()?))
}

/// Returns whether brackets hold nothing but short words in capitals, as zones are written, and no form of a date.
fn is_like_zone(content: &str) -> bool {
    let words: Vec<&str> = content.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).collect();
    let is_code = |word: &&str| {
        let is_form = word.chars().all(|c| "YMDHS".contains(c));
        (2..=5).contains(&word.len()) && word.chars().all(|c| c.is_ascii_uppercase()) && !is_form && !NO_ZONES.contains(word)
    };
    !words.is_empty() && words.iter().all(is_code)
}

#[cfg(test)]
mod tests {
    use jiff::civil::date;

    use super::*;

    /// Hours ahead of UTC in winter and in summer.
    fn hours(zone: &TimeZone) -> (f64, f64) {
        let at = |month| {
            let noon = date(2024, month, 15).at(12, 0, 0, 0);
            let utc = TimeZone::UTC.to_timestamp(noon).unwrap();
            utc.duration_since(zone.to_timestamp(noon).unwrap()).as_secs_f64() / 3600.0
        };
        (at(1), at(7))
    }

    #[test]
    fn zones_in_headers_are_read() {
        for (name, expected) in [
            ("Datetime (UTC)", (0.0, 0.0)),
            ("MTU (CET/CEST)", (1.0, 2.0)),
            ("MTU (EET/EEST)", (2.0, 3.0)),
            ("MTU (WET/WEST)", (0.0, 1.0)),
            ("MTU (TRT)", (3.0, 3.0)),
            ("Time (GMT/BST)", (0.0, 1.0)),
            ("Time (UTC+1)", (1.0, 1.0)),
            ("Time (UTC+05:30)", (5.5, 5.5)),
            ("datetime_beginning_utc", (0.0, 0.0)),
            ("datetime_beginning_ept", (-5.0, -4.0)),
            ("Time (EST/EDT)", (-5.0, -4.0)),
            ("Time (EST)", (-5.0, -5.0)),
            ("Settlement (AEST)", (10.0, 10.0)),
            ("datetime", (0.0, 0.0)),
            ("Date (DD/MM/YYYY)", (0.0, 0.0)),
            ("timestamp (start)", (0.0, 0.0)),
            ("Time (MTU)", (0.0, 0.0)),
            ("Time (PTU)", (0.0, 0.0)),
            ("Time (AM/PM)", (0.0, 0.0)),
            ("Time (DAM)", (0.0, 0.0)),
            ("Time (RTM)", (0.0, 0.0)),
            ("Time (BEG)", (0.0, 0.0)),
            ("Time (PJM)", (0.0, 0.0)),
            ("Time (CAISO)", (0.0, 0.0)),
        ] {
            let zone = zone_of(name, None).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(hours(&zone), expected, "{name}");
        }
        // Only if this machine has a database.
        if let Ok(new_york) = TimeZone::get("America/New_York") {
            assert_eq!(hours(&zone_of("Time (America/New_York)", None).unwrap()), hours(&new_york));
        }
    }

    #[test]
    fn a_name_has_a_zone_or_none() {
        for (name, expected) in [
            ("Time (UTC)", true),
            ("datetime_beginning_ept", true),
            ("Time (CET/CEST)", true),
            ("datetime", false),
            ("Time (Local)", false),
        ] {
            assert_eq!(names_zone(name), expected, "{name}");
        }
    }

    #[test]
    fn zones_that_are_not_known_are_refused_unless_one_is_given() {
        let given = TimeZone::posix("EET-2EEST,M3.5.0/3,M10.5.0/4").unwrap();
        for (name, part) in [
            ("Datetime (Local)", "\"Local\""),
            ("datetime_local", "\"local\""),
            ("Datetime (XYZ)", "\"XYZ\""),
            ("Time (CST)", "\"CST\""),
            ("Time (Eastern Prevailing)", "\"Eastern Prevailing\""),
            ("Time (Europe/Atlantis)", "\"Europe/Atlantis\""),
        ] {
            let message = zone_of(name, None).unwrap_err().to_string();
            assert!(message.contains(part) && message.contains("; name it with --time-zone"), "{name}: {message}");
            // UTC that is given is as good as any other zone.
            for zone in [&given, &TimeZone::UTC] {
                assert_eq!(zone_of(name, Some(zone)).unwrap(), *zone, "{name}");
            }
        }
    }
}
