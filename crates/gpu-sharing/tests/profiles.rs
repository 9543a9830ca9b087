//! Tests profiles and measurements: the values read from them, and refusals.

use eadt_gpu_sharing::{CoRun, CoRunTenant, GpuMeasurements, MetricValues, ProfileMetric, SoloPoint, SoloProfile};

fn point(percentage: u32, rate: f64, watts: f64) -> SoloPoint {
    SoloPoint {
        mps_thread_percentage: percentage,
        sm_clock_mhz: None,
        samples_per_second: rate,
        power_watts: watts,
        counters: MetricValues::of(|metric| (metric == ProfileMetric::SmActiveRatio).then_some(f64::from(percentage) / 125.0)),
    }
}

fn profile(name: &str, points: Vec<SoloPoint>) -> SoloProfile {
    SoloProfile::new(name.into(), "board".into(), points).unwrap()
}

fn refused(points: Vec<SoloPoint>) -> String {
    SoloProfile::new("w".into(), "board".into(), points).unwrap_err().to_string()
}

#[test]
fn between_two_shares_lies_the_line() {
    let profile = profile("w", vec![point(100, 90.0, 200.0), point(20, 30.0, 80.0), point(50, 60.0, 140.0)]);
    let at = profile.at(35, None).unwrap();
    assert_eq!((at.samples_per_second, at.power_watts, at.mps_thread_percentage), (45.0, 110.0, 35));
    assert!((at.counters.get(ProfileMetric::SmActiveRatio).unwrap() - 0.28).abs() < 1e-12);
    assert_eq!(at.counters.get(ProfileMetric::DramActiveRatio), None);
    assert_eq!(profile.at(100, None), Some(*profile.whole()));
    // Below the smallest measured share there is no estimate.
    assert_eq!(profile.at(19, None), None);
    assert_eq!(profile.at(50, Some(1000.0)), None);
    assert_eq!((profile.has(ProfileMetric::SmActiveRatio), profile.has(ProfileMetric::DramActiveRatio)), (true, false));
}

#[test]
fn elasticity_is_the_slope_over_the_share() {
    let of = |points| profile("w", points).elasticity();
    // Throughput in proportion to the share, and none at all.
    assert!((of(vec![point(25, 10.0, 50.0), point(50, 20.0, 60.0), point(100, 40.0, 90.0)]) - 1.0).abs() < 1e-12);
    assert!(of(vec![point(25, 40.0, 50.0), point(50, 40.0, 60.0), point(100, 40.0, 90.0)]).abs() < 1e-12);
}

#[test]
fn clocks_are_kept_apart() {
    let at = |mhz: f64, p: SoloPoint| SoloPoint { sm_clock_mhz: Some(mhz), ..p };
    let points = vec![
        at(700.0, point(50, 30.0, 70.0)),
        at(700.0, point(100, 50.0, 100.0)),
        at(1400.0, point(50, 60.0, 140.0)),
        at(1400.0, point(100, 90.0, 200.0)),
    ];
    let clocked = profile("w", points.clone());
    assert_eq!(clocked.clocks().collect::<Vec<_>>(), [Some(1400.0), Some(700.0)]);
    assert_eq!(clocked.whole().samples_per_second, 90.0);
    assert_eq!(clocked.at(75, Some(700.0)).unwrap().samples_per_second, 40.0);
    assert_eq!(clocked.at(75, None).unwrap().samples_per_second, 75.0);
    let text = refused(points[..3].to_vec());
    assert_eq!(text, "workload w was not measured at 100 % and 1400 MHz: without it the cost of sharing is not known");
    // Written and read again it is the same.
    let read: SoloProfile = serde_json::from_str(&serde_json::to_string(&clocked).unwrap()).unwrap();
    assert_eq!(read, clocked);
}

#[test]
fn figures_that_cannot_be_are_named() {
    let whole = point(100, 40.0, 90.0);
    assert!(refused(vec![whole]).starts_with("workload w was measured at 100 % only"));
    assert!(refused(vec![]).contains("was not measured at 100 %"));
    assert!(refused(vec![whole, whole, point(50, 1.0, 50.0)]).starts_with("workload w was measured twice at 100 %"));
    assert!(refused(vec![whole, point(50, 20.0, 350_000.0)]).contains("350000, which no GPU draws: milliwatts?"));
    assert!(refused(vec![whole, point(50, 0.0, 50.0)]).contains("samples_per_second is 0"));
    assert!(refused(vec![whole, point(50, f64::NAN, 50.0)]).contains("samples_per_second is NaN"));
    assert!(refused(vec![whole, point(50, 20.0, -1.0)]).contains("power_watts is -1"));
    assert!(refused(vec![whole, point(50, 20.0, f64::INFINITY)]).contains("power_watts is inf"));
    assert!(refused(vec![whole, point(101, 20.0, 50.0)]).contains("mps_thread_percentage is 101"));
    // Percent instead of a ratio.
    let percent = SoloPoint { counters: MetricValues::of(|_| Some(45.0)), ..point(50, 20.0, 50.0) };
    assert!(refused(vec![whole, percent]).contains("sm_active_ratio is 45, but must be within 0 and 1.05"));
}

#[test]
fn measurements_must_fit_together() {
    let of = |name: &str| profile(name, vec![point(20, 10.0, 60.0), point(100, 40.0, 90.0)]);
    let tenant = |name: &str, percentage, rate| CoRunTenant {
        workload: name.into(),
        mps_thread_percentage: percentage,
        samples_per_second: rate,
    };
    let run = |tenants| CoRun { tenants, sm_clock_mhz: None, power_watts: 100.0 };
    let error = |idle, profiles, runs| GpuMeasurements::new(idle, profiles, runs).unwrap_err().to_string();
    let both = || vec![of("a"), of("b")];
    assert!(error(30.0, vec![], vec![]).contains("no profile"));
    assert!(error(60.0, both(), vec![]).contains("the idle power is 60 W, but must be above 0 and below 60 W"));
    assert!(error(30.0, vec![of("a"), of("a")], vec![]).contains("workload a has two profiles"));
    let other = SoloProfile::new("c".into(), "other".into(), vec![point(20, 1.0, 60.0), point(100, 2.0, 90.0)]).unwrap();
    assert!(error(30.0, vec![of("a"), other], vec![]).contains("workload c was measured on other, but others on board"));
    let strange = run(vec![tenant("a", 50, 20.0), tenant("z", 50, 20.0)]);
    assert!(error(30.0, both(), vec![strange]).contains("co-run 0: workload z has no profile"));
    let small = run(vec![tenant("a", 10, 20.0), tenant("b", 90, 20.0)]);
    assert!(error(30.0, both(), vec![small]).contains("workload a was not measured alone at 10 %"));
    let alone = run(vec![tenant("a", 50, 20.0)]);
    assert!(error(30.0, both(), vec![alone]).contains("number of workloads is 1"));
    let still = run(vec![tenant("a", 50, 0.0), tenant("b", 50, 20.0)]);
    assert!(error(30.0, both(), vec![still]).contains("samples_per_second is 0"));
    let fine = GpuMeasurements::new(30.0, both(), vec![run(vec![tenant("b", 40, 9.0), tenant("a", 60, 20.0)])]).unwrap();
    assert_eq!(fine.groups().into_iter().collect::<Vec<_>>(), [vec!["a", "b"]]);
    assert_eq!(fine.metrics(), [ProfileMetric::SmActiveRatio]);
}
