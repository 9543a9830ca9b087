use serde::{Deserialize, Serialize};

use super::BoardParameters;

/// Temperature of a board: first order, exact for a power that is constant over the step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ThermalState {
    /// °C.
    pub celsius: f64,
}

impl ThermalState {
    /// Returns a board as warm as its surroundings.
    pub const fn at_ambient(ambient_celsius: f64) -> Self {
        Self { celsius: ambient_celsius }
    }

    /// Goes on by `seconds` at `watts`.
    pub fn advance(&mut self, board: &BoardParameters, watts: f64, ambient_celsius: f64, seconds: f64) {
        let settled = ambient_celsius + board.thermal_resistance * watts;
        self.celsius += (settled - self.celsius) * -(-seconds / board.thermal_seconds).exp_m1();
    }
}

/// The energy counter of a board: joules since the driver was loaded, read in whole millijoules.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct EnergyMeter {
    joules: f64,
}

impl EnergyMeter {
    /// Adds `seconds` at `watts`.
    pub fn advance(&mut self, watts: f64, seconds: f64) {
        self.joules += watts * seconds;
    }

    /// Returns the reading of the counter, in joules: whole millijoules, rounded down.
    pub fn joules(&self) -> f64 {
        (self.joules * 1000.0).floor() / 1000.0
    }

    /// Notes that the driver was loaded again.
    pub fn reset(&mut self) {
        self.joules = 0.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::BoardModel;

    #[test]
    fn the_temperature_does_not_depend_on_the_step() {
        let board = BoardModel::A100.board();
        let (mut coarse, mut fine) = (ThermalState::at_ambient(30.0), ThermalState::at_ambient(30.0));
        coarse.advance(board, 300.0, 30.0, 100.0);
        for _ in 0..1000 {
            fine.advance(board, 300.0, 30.0, 0.1);
        }
        assert!((coarse.celsius - fine.celsius).abs() < 1e-9);
        // Two time constants: 1 - e^-2 of the way from 30 to 63 °C.
        assert!((coarse.celsius - (30.0 + 33.0 * (1.0 - (-2.0_f64).exp()))).abs() < 1e-9);
    }

    #[test]
    fn the_counter_holds_all_the_energy_and_never_falls() {
        let mut meter = EnergyMeter::default();
        let (mut whole, mut last) = (0.0, 0.0);
        for second in 0..10_000_u32 {
            let watts = 100.0 + f64::from(second % 251);
            meter.advance(watts, 0.1);
            whole += watts * 0.1;
            assert!(meter.joules() >= last);
            last = meter.joules();
        }
        assert!((meter.joules() - whole).abs() <= 0.001 + 1e-6);
        meter.reset();
        assert_eq!(meter.joules(), 0.0);
    }
}
