use rand::SeedableRng;
use rand_distr::{Distribution, StandardNormal};
use rand_pcg::Pcg64Mcg;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Quantity that noise disturbs; each has its own stream of random numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NoiseChannel {
    Power,
    SmActive,
    Occupancy,
    TensorActive,
    DramActive,
    Utilization,
}

/// Measurement noise and the job's own unevenness, as factors near 1.
///
/// A figure depends only on the seed, what it disturbs and the instant, not on what was asked before: there is no state to
/// save, and a resumed simulation reads the same values. The amplitudes are standard deviations; the defaults are assumed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SimulationNoise {
    pub seed: u64,
    /// Noise of one power reading, relative. 0 to 0.2. Default 0.015.
    pub power_ratio: f64,
    /// Error of a device's power sensor, the same for the device's whole life. 0 to 0.2. Default 0.01.
    pub gain_ratio: f64,
    /// Noise of one reading of an activity ratio, relative. 0 to 0.2. Default 0.015.
    pub activity_ratio: f64,
    /// Noise of a job's speed, relative. 0 to 0.2. Default 0.02.
    pub throughput_ratio: f64,
    /// Time for which a job's speed stays about the same, in seconds. Above 0. Default 60.
    pub throughput_seconds: f64,
}

impl Default for SimulationNoise {
    fn default() -> Self {
        Self {
            seed: 0,
            power_ratio: 0.015,
            gain_ratio: 0.01,
            activity_ratio: 0.015,
            throughput_ratio: 0.02,
            throughput_seconds: 60.0,
        }
    }
}

// Keeps gains and speeds apart from the channels.
const GAIN: u64 = 1 << 32;
const THROUGHPUT: u64 = 2 << 32;
/// No draw lies further out than this many standard deviations.
const LIMIT: f64 = 4.0;

impl SimulationNoise {
    /// Returns settings without any noise.
    pub fn none() -> Self {
        Self { seed: 0, power_ratio: 0.0, gain_ratio: 0.0, activity_ratio: 0.0, throughput_ratio: 0.0, throughput_seconds: 60.0 }
    }

    /// Returns the gain of a device's power sensor; it applies to its power and to its energy counter.
    pub fn gain(&self, device: u64) -> f64 {
        1.0 + self.gain_ratio * self.draw(GAIN, device, 0)
    }

    /// Returns the factor of one reading at `micros` since the epoch.
    pub fn reading(&self, channel: NoiseChannel, device: u64, micros: i64) -> f64 {
        let ratio = if channel == NoiseChannel::Power { self.power_ratio } else { self.activity_ratio };
        1.0 + ratio * self.draw(channel as u64, device, micros as u64)
    }

    /// Returns the factor of a job's speed at `micros` since the epoch: even between the instants at which a new value is drawn.
    pub fn throughput(&self, job: u64, micros: i64) -> f64 {
        let interval = ((self.throughput_seconds * 1e6) as i64).max(1);
        1.0 + self.throughput_ratio * self.draw(THROUGHPUT, job, micros.div_euclid(interval) as u64)
    }

    fn draw(&self, stream: u64, subject: u64, instant: u64) -> f64 {
        let mut key = mix(self.seed ^ 0x9e37_79b9_7f4a_7c15);
        for word in [stream, subject, instant] {
            key = mix(key ^ word);
        }
        let normal: f64 = StandardNormal.sample(&mut Pcg64Mcg::seed_from_u64(key));
        normal.clamp(-LIMIT, LIMIT)
    }
}

// SplitMix64's finaliser: neighbouring keys give unrelated seeds.
fn mix(key: u64) -> u64 {
    let mut z = key.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(values: impl Iterator<Item = f64>) -> (f64, f64) {
        let values: Vec<f64> = values.collect();
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        (mean, (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n).sqrt())
    }

    #[test]
    fn amplitudes_are_those_asked_for() {
        let noise = SimulationNoise { seed: 7, ..SimulationNoise::default() };
        let readings = |channel| moments((0..20_000).map(move |second| noise.reading(channel, 3, second * 1_000_000)));
        for channel in [NoiseChannel::Power, NoiseChannel::DramActive] {
            let (mean, deviation) = readings(channel);
            assert!((mean - 1.0).abs() < 5e-4, "{mean}");
            assert!((deviation - 0.015).abs() < 5e-4, "{deviation}");
        }
        let (mean, deviation) = moments((0..5_000).map(|device| noise.gain(device)));
        assert!((mean - 1.0).abs() < 1e-3 && (deviation - 0.01).abs() < 1e-3, "{mean} {deviation}");
        let (mean, deviation) = moments((0..5_000).map(|minute| noise.throughput(0, minute * 60_000_000)));
        assert!((mean - 1.0).abs() < 1e-3 && (deviation - 0.02).abs() < 1e-3, "{mean} {deviation}");
    }

    #[test]
    fn a_figure_depends_on_seed_subject_and_instant_alone() {
        let noise = SimulationNoise { seed: 7, ..SimulationNoise::default() };
        let other = SimulationNoise { seed: 8, ..noise };
        assert_eq!(noise.reading(NoiseChannel::Power, 1, 5), noise.reading(NoiseChannel::Power, 1, 5));
        assert_ne!(noise.reading(NoiseChannel::Power, 1, 5), other.reading(NoiseChannel::Power, 1, 5));
        assert_ne!(noise.reading(NoiseChannel::Power, 1, 5), noise.reading(NoiseChannel::Power, 2, 5));
        assert_ne!(noise.reading(NoiseChannel::Power, 1, 5), noise.reading(NoiseChannel::Power, 1, 6));
        assert_ne!(noise.reading(NoiseChannel::SmActive, 1, 5), noise.reading(NoiseChannel::DramActive, 1, 5));
        assert_eq!(noise.throughput(1, 60_000_000), noise.throughput(1, 119_999_999));
        assert_ne!(noise.throughput(1, 59_999_999), noise.throughput(1, 60_000_000));
        assert_eq!(SimulationNoise::none().reading(NoiseChannel::Power, 1, 5), 1.0);
    }
}
