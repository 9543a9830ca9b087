//! Keys to partitions as the JVM clients do it (`murmur2_random` in librdkafka).

/// Returns Murmur2 with Kafka's seed.
pub fn murmur2(data: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let mut h: u32 = 0x9747_b28c ^ data.len() as u32;
    let mut chunks = data.chunks_exact(4);
    for chunk in &mut chunks {
        let mut k = u32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]).wrapping_mul(M);
        k ^= k >> 24;
        h = h.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    let tail = chunks.remainder();
    for (i, byte) in tail.iter().enumerate() {
        h ^= u32::from(*byte) << (8 * i);
    }
    if !tail.is_empty() {
        h = h.wrapping_mul(M);
    }
    h ^= h >> 13;
    h = h.wrapping_mul(M);
    h ^ (h >> 15)
}

/// Returns the partition of a key; `partitions` must be positive.
pub fn partition_for_key(key: &[u8], partitions: i32) -> i32 {
    ((murmur2(key) & 0x7fff_ffff) % partitions as u32) as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_jvm_clients() {
        // Vectors of Apache Kafka's own UtilsTest.
        for (key, hash) in [
            ("21", -973_932_308_i32),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            ("abc", 479_470_107),
        ] {
            assert_eq!(murmur2(key.as_bytes()) as i32, hash, "{key}");
        }
    }

    #[test]
    fn the_partition_is_the_rest_of_the_hash_without_its_sign() {
        // -973,932,308 is 1,173,551,340 without the bit of its sign, and -790,332,482 is 1,357,151,166.
        for (key, partitions, partition) in
            [("21", 1, 0), ("21", 7, 3), ("21", 12, 0), ("foobar", 12, 6), ("abc", 12, 3), ("abc", i32::MAX, 479_470_107)]
        {
            assert_eq!(partition_for_key(key.as_bytes(), partitions), partition, "{key} of {partitions}");
        }
    }
}
