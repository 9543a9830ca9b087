//! Computes the case studies A to D of the *energy models* document: what each claim implies, and which one is impossible.
//!
//! The figures are the document's own claims; they were not measured here. `cargo run -p eadt-models --example case_studies`

use eadt_models::energy::{IntegrationRule, PowerSample, PowerSeries};
use eadt_models::fit::{CapCurve, CapPoint};

fn percent(ratio: f64) -> String {
    format!("{:+.1} %", 100.0 * (ratio - 1.0))
}

fn main() {
    println!("All figures below are claims of the energy models document, unverified; what follows from them is computed.\n");

    // Throughput / power = tokens per joule, so two of the three figures give the third.
    println!("A  FP16 to INT8 with FlashAttention: 2.2 x throughput, 1.9 x tokens per joule");
    let power = 2.2 / 1.9;
    println!("   implies {} power while it runs; energy per token {}\n", percent(power), percent(1.0 / 1.9));

    println!("B  power cap 300 W to 255 W on an A100: -15 % power, -7 % performance, +20 % performance per watt");
    let implied = 0.93 / (255.0 / 300.0);
    println!("   inconsistent: 0.93 / 0.85 = {implied:.4}, so performance per watt is {}, not +20 %", percent(implied));
    println!(
        "   for +20 % the power drawn must have fallen by {}, or performance risen by {}",
        percent(0.93 / 1.2),
        percent(1.2 * 0.85)
    );
    println!(
        "   (a cap bounds the power drawn; it does not equal it. With -7 % speed, time to quality is longer by {})\n",
        percent(1.0 / 0.93)
    );

    println!("C  continuous batching with CUDA graphs: 1.6 x tokens per joule at moderate load, -30 % p95 latency");
    let (joules, tokens) = (1000.0, 1000.0);
    println!(
        "   {:.3} to {:.3} J/token at equal power: energy per token {}; latency gives nothing about energy\n",
        joules / tokens,
        joules / (1.6 * tokens),
        percent(1.0 / 1.6)
    );

    println!("D  activation checkpointing with larger micro-batches: +12 % throughput, +10 % performance per watt");
    println!("   consistent: implies {} power; energy per sample {}\n", percent(1.12 / 1.10), percent(1.0 / 1.10));

    println!("Why a·P^b alone cannot find a best cap: simulated points of 3·(P - 60)^0.5 between 100 and 250 W");
    let points: Vec<CapPoint> =
        (4..=10).map(|i| 25.0 * f64::from(i)).map(|watts| CapPoint { watts, throughput: 3.0 * (watts - 60.0).sqrt() }).collect();
    let curve = CapCurve::fit(&points).expect("seven different powers");
    println!("   a·P^b       b = {:.3}, R² = {:.4}: no peak", curve.power_law.b, curve.power_law.r_squared.unwrap_or(0.0));
    println!(
        "   a·(P-P0)^b  b = {:.3}, P0 = {:.1} W, R² = {:.4}: peak at P0 / (1 - b) = {:.1} W\n",
        curve.offset_power_law.b,
        curve.offset_power_law.offset_watts,
        curve.offset_power_law.r_squared.unwrap_or(0.0),
        curve.offset_power_law.peak_watts.unwrap_or(f64::NAN)
    );

    println!("Trapezoid against the document's rectangle rule: a ramp from 100 to 400 W in 3 s, one reading a second");
    let ramp = (0..4).map(|second| PowerSample { seconds: f64::from(second), watts: 100.0 + 100.0 * f64::from(second) });
    let ramp = PowerSeries::new(ramp).expect("readings in order");
    for (name, rule) in [("trapezoid", IntegrationRule::Trapezoid), ("rectangle", IntegrationRule::Rectangle)] {
        println!("   {name} {:.0} J (exact: 750 J)", ramp.energy(rule).expect("four readings").joules);
    }
}
