//! Learning curves and the noise of evaluations, for tests.

/// `floor + range · (1 + s/steps)^−exponent`, or an exponential curve without an exponent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Curve {
    pub floor: f64,
    pub range: f64,
    pub steps: f64,
    pub exponent: Option<f64>,
}

impl Curve {
    pub fn at(&self, steps: f64) -> f64 {
        let part = match self.exponent {
            Some(exponent) => (1.0 + steps / self.steps).powf(-exponent),
            None => (-steps / self.steps).exp(),
        };
        self.floor + self.range * part
    }
}

/// Returns curves whose reducible part is 0.1 to 0.8 of the loss after so many steps. Offsets are 0.002 to 1 of these steps,
/// exponents 0.3 to 1.2; time constants of exponential curves are 0.2 to 1 of them.
pub(super) fn family(steps: f64) -> Vec<Curve> {
    let powers = [0.002, 0.02, 0.05, 0.1, 0.2, 0.4, 1.0]
        .into_iter()
        .flat_map(|offset| [0.3, 0.5, 0.8, 1.2].map(|exponent| (offset * steps, Some(exponent))));
    let exponentials = [0.2, 0.5, 1.0].map(|constant| (constant * steps, None));
    let shapes: Vec<_> = powers.chain(exponentials).collect();
    let reducible = |part: f64| {
        shapes.clone().into_iter().map(move |(offset, exponent)| {
            let unit = Curve { floor: 0.0, range: 1.0, steps: offset, exponent };
            Curve { floor: 3.0 * (1.0 - part), range: 3.0 * part / unit.at(steps), ..unit }
        })
    };
    [0.1, 0.4, 0.8].into_iter().flat_map(reducible).collect()
}

/// Numbers of a normal distribution with mean 0 and deviation 1, the same for the same seed (Steele et al. 2014; Box and Muller 1958).
#[derive(Debug, Clone)]
pub(super) struct Noise(pub u64);

impl Noise {
    pub fn next(&mut self) -> f64 {
        let radius = (-2.0 * self.uniform().ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// Returns a number above 0 and at most 1.
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (((mixed ^ (mixed >> 31)) >> 11) as f64 + 1.0) / (1_u64 << 53) as f64
    }
}
