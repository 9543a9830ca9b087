//! Text that may be shown: no character that steers a terminal or reorders text. One rule for the terminal, logs and pages.
//!
//! In: any text, such as a name or key that another program wrote. Out: the same text, with such characters as JSON escapes
//! (`\u001b`). A JSON document keeps its meaning.

use std::borrow::Cow;
use std::fmt;

/// Returns whether a character moves the cursor, changes the order of text, or is not visible at all: control characters, and
/// format characters (general category Cf) and `Default_Ignorable_Code_Point` of Unicode, unassigned ones included.
pub fn steers(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{ad}' | '\u{34f}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}'..='\u{891}' | '\u{8e2}'
            | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}' | '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// Escapes the characters of a text that steer, but for those to `keep`.
pub fn escape(text: &str, keep: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.chars().any(|character| steers(character) && !keep(character)) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if steers(character) && !keep(character) {
            for unit in character.encode_utf16(&mut [0; 2]) {
                fmt::Write::write_fmt(&mut shown, format_args!("\\u{unit:04x}")).expect("String");
            }
        } else {
            shown.push(character);
        }
    }
    Cow::Owned(shown)
}

/// Escapes a text of several lines: line breaks and tabs stay.
pub fn escape_lines(text: &str) -> Cow<'_, str> {
    escape(text, |character| matches!(character, '\n' | '\t'))
}

/// Escapes a text that must stay within its line, such as a key or a name.
pub fn escape_line(text: &str) -> Cow<'_, str> {
    escape(text, |_| false)
}
