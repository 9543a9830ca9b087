//! Topics that a member of a group subscribes to, as the broker passes them on: a version, and the topics. Owned partitions and other
//! data of later versions follow, and are not read.

/// More topics than any member subscribes to.
const MAX_TOPICS: usize = 10_000;

/// Parses a subscription of the consumer protocol; `None` if it is none, such as while the group is empty or rebalances.
pub fn parse(metadata: &[u8]) -> Option<Vec<String>> {
    let (version, rest) = metadata.split_first_chunk::<2>()?;
    if i16::from_be_bytes(*version) < 0 {
        return None;
    }
    let (count, mut rest) = rest.split_first_chunk::<4>()?;
    let count = usize::try_from(i32::from_be_bytes(*count)).ok().filter(|count| *count <= MAX_TOPICS)?;
    let mut topics = Vec::new();
    for _ in 0..count {
        let (length, after) = rest.split_first_chunk::<2>()?;
        let length = usize::try_from(i16::from_be_bytes(*length)).ok()?;
        let (topic, after) = after.split_at_checked(length)?;
        topics.push(String::from_utf8(topic.to_vec()).ok()?);
        rest = after;
    }
    Some(topics)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_are_read_and_anything_else_is_none() {
        let written = b"\0\x03\0\0\0\x02\0\x01a\0\x04eadt\xff\xff\xff\xff";
        assert_eq!(parse(written), Some(vec!["a".to_owned(), "eadt".to_owned()]));
        assert_eq!(parse(b"\0\0\0\0\0\0"), Some(Vec::new()));
        for cut in 0..15 {
            assert_eq!(parse(&written[..cut]), None, "{cut}");
        }
        for wrong in [
            &b"\xff\xff\0\0\0\0"[..],
            b"\0\0\xff\xff\xff\xff",
            b"\0\0\x7f\xff\xff\xff",
            b"\0\0\0\0\0\x01\xff\xff",
            b"\0\0\0\0\0\x01\0\x01\xff",
        ] {
            assert_eq!(parse(wrong), None, "{wrong:?}");
        }
    }
}
