//! Counts as people read them: one thing is not "1 things".

use std::fmt::Display;

/// Returns a count with its noun, in the plural unless the count is one: `1 window`, `0 windows`, `3 entries`.
///
/// The noun is given in the singular, and its plural is regular. See [`counted_as`] for others, and for verbs.
pub fn counted<N: Copy + Display + PartialEq + From<u8>>(count: N, noun: &str) -> String {
    if count == N::from(1) {
        return format!("{count} {noun}");
    }
    let plural = match noun.strip_suffix('y') {
        Some(stem) if !stem.ends_with(['a', 'e', 'o', 'u']) => format!("{stem}ies"),
        _ if noun.ends_with(['s', 'x']) || noun.ends_with("ch") || noun.ends_with("sh") => format!("{noun}es"),
        _ => format!("{noun}s"),
    };
    format!("{count} {plural}")
}

/// Returns a count with what follows it, by whether it is one: `1 window has`, `2 windows have`.
pub fn counted_as<N: Copy + Display + PartialEq + From<u8>>(count: N, one: &str, many: &str) -> String {
    let words = if count == N::from(1) { one } else { many };
    format!("{count} {words}")
}

/// Returns the first names, `most` at most, and how many more there are: `a, b and 3 more`.
pub fn list_first(names: &[impl AsRef<str>], most: usize) -> String {
    let shown = names.iter().take(most).map(AsRef::as_ref).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(most) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_singular_and_all_others_are_plural() {
        let texts = [counted(1_u64, "revert"), counted(0_usize, "revert"), counted(2_u32, "dead letter")];
        assert_eq!(texts, ["1 revert", "0 reverts", "2 dead letters"]);
        let irregular = ["entry", "day", "batch", "process"].map(|noun| counted(3_u8, noun));
        assert_eq!(irregular, ["3 entries", "3 days", "3 batches", "3 processes"]);
        let verbs = [1_u64, 2].map(|count| counted_as(count, "window has", "windows have"));
        assert_eq!(verbs, ["1 window has", "2 windows have"]);
    }

    #[test]
    fn of_a_longer_list_the_first_names_and_the_count_of_the_others_are_given() {
        let lists = [0, 2, 3].map(|most| list_first(&["a", "b", "c"][..most], 2));
        assert_eq!(lists, ["", "a, b", "a, b and 1 more"]);
    }
}
