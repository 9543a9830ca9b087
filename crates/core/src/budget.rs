//! A cluster's power budget, shared among its workloads: the controller `power-budget`.
//!
//! In: the workloads of a cluster with their layouts in force, and what is known of their throughput against power. Out:
//! decisions that set power caps. The sum over all GPUs of the highest cap that may come into force is never above the budget:
//! reductions are decided at once; a raise is given only what is left while every reduction that is not in force yet counts as
//! not made, and every raise that was given counts until it has expired, whether it was carried out or not.
//!
//! Watts go where another joule gives the most work (water-filling): of each workload the throughput against the power of a
//! GPU is made concave, cut into straight pieces, and the pieces of all workloads are filled in the order of their slopes.
//! Work is counted in GPUs at full throughput, because samples of different jobs cannot be compared. No workload gets more
//! than the cap at which it takes least energy for a sample without being slower than it may be; none less than its bounds.

use std::collections::BTreeMap;

use eadt_schemas::EventTime;
use eadt_schemas::v1::{Action, Decision, Layout, Origin, UpdateMode, Workload};
use serde::{Deserialize, Serialize};

/// The controller's name in decisions.
pub const CONTROLLER: &str = "power-budget";
/// Grows with every change of what it decides.
const VERSION: &str = "1";

/// How a budget is kept.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BudgetSettings {
    /// Power of all GPUs together that is never exceeded, in watts. Above 0.
    pub budget_watts: f64,
    /// Lowest cap as a part of the board's limit, where the workload's bounds do not say. Above 0, at most 1. Default 0.3.
    pub power_limit_min_ratio: f64,
    /// Throughput that a workload may lose where there is power enough. 0 to 0.9. Default 0.07.
    pub max_slowdown_ratio: f64,
    /// Caps that differ by less than this part are left as they are, unless the budget is exceeded. 0 to 0.5. Default 0.02.
    pub turn_min_ratio: f64,
    /// A decision that was not applied within this time is void, in seconds. Above 0. Default 300.
    pub expiry_seconds: f64,
}

impl Default for BudgetSettings {
    fn default() -> Self {
        Self {
            budget_watts: 0.0,
            power_limit_min_ratio: 0.3,
            max_slowdown_ratio: 0.07,
            turn_min_ratio: 0.02,
            expiry_seconds: 300.0,
        }
    }
}

/// Throughput of a workload at a power of each of its GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PowerPoint {
    pub watts: f64,
    pub samples_per_second: f64,
}

/// One workload of the cluster.
#[derive(Debug, Clone, Copy)]
pub struct Consumer<'a> {
    /// Layout, bounds and board in force.
    pub workload: &'a Workload,
    /// What was measured, or what a learned curve says; without any, throughput is taken to rise with the root of the power.
    pub points: &'a [PowerPoint],
    /// Name and version of the learned model that the points are from.
    pub model_version: Option<&'a str>,
}

/// A raise that may still come into force.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Grant {
    watts: f64,
    expires: EventTime,
}

/// What is remembered of a cluster.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct BudgetState {
    grants: BTreeMap<String, Vec<Grant>>,
}

/// What became of a look at a cluster.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Changes to make now.
    pub decisions: Vec<Decision>,
    /// Power of all GPUs if every cap that may come into force did and were reached, in watts; `None`: a cap is not known.
    pub exposed_watts: Option<f64>,
    /// Why these, or why none.
    pub reason: String,
}

/// What is possible on one workload's GPUs.
#[derive(Debug, Clone)]
struct Room {
    gpus: f64,
    /// Caps of one GPU.
    least: f64,
    most: f64,
    in_force: f64,
    curve: Concave,
}

/// Throughput against power as a part of the highest, rising, in straight pieces whose slopes fall.
#[derive(Debug, Clone, PartialEq)]
struct Concave {
    knots: Vec<(f64, f64)>,
}

/// How throughput rises with power where nothing is known: with its root.
const PRIOR_EXPONENT: f64 = 0.5;
/// Pieces of the prior.
const PRIOR_PIECES: u32 = 16;
/// Watts that rounding may leave or take.
const EPSILON: f64 = 1e-6;

impl Concave {
    /// From `least` to `most` watts. Below what was measured throughput falls as the power does, which is the most that it can;
    /// above it rises as it did last.
    fn of(points: &[PowerPoint], least: f64, most: f64) -> Self {
        let usable = |p: &&PowerPoint| {
            p.watts > 0.0 && p.samples_per_second > 0.0 && p.watts.is_finite() && p.samples_per_second.is_finite()
        };
        let mut known: Vec<(f64, f64)> = points.iter().filter(usable).map(|p| (p.watts, p.samples_per_second)).collect();
        known.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let hull = majorant(&known);
        let (Some(&first), Some(&last)) = (hull.first(), hull.last()) else { return Self::prior(least, most) };
        let last_slope = match hull.as_slice() {
            [.., a, b] => (b.1 - a.1) / (b.0 - a.0),
            _ => PRIOR_EXPONENT * last.1 / last.0,
        };
        let at = |watts: f64| {
            if watts <= first.0 {
                first.1 * watts / first.0
            } else if watts >= last.0 {
                last.1 + last_slope * (watts - last.0)
            } else {
                let above = hull.partition_point(|knot| knot.0 <= watts);
                let (a, b) = (hull[above - 1], hull[above]);
                a.1 + (b.1 - a.1) * (watts - a.0) / (b.0 - a.0)
            }
        };
        let inner = hull.iter().map(|knot| knot.0).filter(|watts| *watts > least && *watts < most);
        let mut knots: Vec<f64> = std::iter::once(least).chain(inner).chain([most]).collect();
        knots.dedup_by(|a, b| (*a - *b).abs() < EPSILON);
        let top = at(most);
        Self { knots: knots.into_iter().map(|watts| (watts, at(watts) / top)).collect() }
    }

    fn prior(least: f64, most: f64) -> Self {
        let piece = |n: u32| {
            let watts = least + (most - least) * f64::from(n) / f64::from(PRIOR_PIECES);
            (watts, (watts / most).powf(PRIOR_EXPONENT))
        };
        let mut knots: Vec<_> = (0..=PRIOR_PIECES).map(piece).collect();
        knots.dedup_by(|a, b| (a.0 - b.0).abs() < EPSILON);
        Self { knots }
    }

    /// The power from which on another watt only costs: where energy per sample is least with enough throughput.
    fn wanted(&self, progress_min: f64) -> f64 {
        let energy = |(watts, progress): (f64, f64)| watts / progress;
        let mut best: Option<(f64, f64)> = None;
        for pair in self.knots.windows(2) {
            // On a straight piece energy per sample has its least at an end, or where throughput is just enough.
            let ((w0, p0), (w1, p1)) = (pair[0], pair[1]);
            let edge = (p0 < progress_min && p1 > progress_min && p1 > p0)
                .then(|| (w0 + (w1 - w0) * (progress_min - p0) / (p1 - p0), progress_min));
            for knot in [Some(pair[0]), edge, Some(pair[1])].into_iter().flatten() {
                if knot.1 >= progress_min - EPSILON && best.is_none_or(|best| energy(knot) < energy(best)) {
                    best = Some(knot);
                }
            }
        }
        best.map_or(self.knots[self.knots.len() - 1].0, |best| best.0)
    }
}

/// The least concave function that is nowhere below the points and never falls.
fn majorant(sorted: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut hull: Vec<(f64, f64)> = Vec::with_capacity(sorted.len());
    for &point in sorted {
        if hull.last().is_some_and(|last| point.1 <= last.1) {
            continue;
        }
        if hull.last().is_some_and(|last| point.0 - last.0 < EPSILON) {
            hull.pop();
        }
        while let [.., a, b] = hull[..]
            && (b.1 - a.1) * (point.0 - a.0) <= (point.1 - a.1) * (b.0 - a.0)
        {
            hull.pop();
        }
        hull.push(point);
    }
    // Concave from the origin on: a first point that lies under the line to a later one is no knot.
    while let [a, b, ..] = hull[..]
        && a.1 / a.0 < b.1 / b.0
    {
        hull.remove(0);
    }
    hull
}

/// Caps of one GPU of each workload, in whole watts.
#[derive(Debug, Clone, PartialEq)]
struct Shared {
    caps: Vec<f64>,
    /// What the workloads need at least, where that is above the budget.
    short: Option<f64>,
}

/// A straight piece of a workload's curve.
struct Piece {
    room: usize,
    watts: f64,
    slope: f64,
}

fn fill(rooms: &[Room], settings: &BudgetSettings) -> Shared {
    let mut caps: Vec<f64> = rooms.iter().map(|room| room.least).collect();
    let need: f64 = rooms.iter().map(|room| room.gpus * room.least).sum();
    let mut left = settings.budget_watts - need;
    if left < 0.0 {
        return Shared { caps, short: Some(need) };
    }
    let mut pieces: Vec<Piece> = Vec::new();
    for (index, room) in rooms.iter().enumerate() {
        let wanted = room.curve.wanted(1.0 - settings.max_slowdown_ratio);
        for pair in room.curve.knots.windows(2) {
            let ((w0, p0), (w1, p1)) = (pair[0], pair[1]);
            let watts = w1.min(wanted) - w0;
            if watts > 0.0 {
                pieces.push(Piece { room: index, watts, slope: (p1 - p0) / (w1 - w0) });
            }
        }
    }
    // Stable: pieces of one workload stay in the order of the power, those of equal slope in the order of the workloads.
    pieces.sort_by(|a, b| b.slope.total_cmp(&a.slope));
    for piece in pieces {
        let room = &rooms[piece.room];
        let watts = piece.watts.min(left / room.gpus);
        caps[piece.room] += watts;
        left -= watts * room.gpus;
    }
    let whole = |(cap, room): (f64, &Room)| (cap + EPSILON).floor().clamp(room.least, room.most);
    Shared { caps: caps.into_iter().zip(rooms).map(whole).collect(), short: None }
}

fn room(consumer: &Consumer<'_>, settings: &BudgetSettings) -> Result<Room, String> {
    let Workload { workload, layout, bounds, gpus, gpu_power_limit_watts, .. } = consumer.workload;
    let gpus = gpus.filter(|gpus| *gpus > 0).ok_or_else(|| format!("{workload} does not say how many GPUs it has"))?;
    let board = gpu_power_limit_watts.filter(|watts| *watts > 0.0);
    let unlimited =
        || format!("neither a cap nor the board's power limit of {workload} is known: nobody can say what it may draw");
    let in_force = layout.power_limit_watts.or(board).ok_or_else(unlimited)?;
    let top = [board, bounds.power_limit_watts_max].into_iter().flatten().reduce(f64::min).unwrap_or(in_force);
    let least = bounds.power_limit_watts_min.unwrap_or(settings.power_limit_min_ratio * board.unwrap_or(top)).ceil().min(top);
    // What must not be turned stays as it is, and counts.
    let turns = consumer.workload.mode == UpdateMode::Enforce && !consumer.workload.paused;
    let (least, most) = if turns { (least, top) } else { (in_force, in_force) };
    Ok(Room { gpus: f64::from(gpus), least, most, in_force, curve: Concave::of(consumer.points, least, most) })
}

/// Looks at a cluster at the end of a window. `consumers` are all workloads whose power counts, in the order of their names.
pub fn share(state: &mut BudgetState, time: EventTime, consumers: &[Consumer<'_>], settings: &BudgetSettings) -> Outcome {
    state.grants.retain(|_, grants| {
        grants.retain(|grant| grant.expires > time);
        !grants.is_empty()
    });
    let rooms: Result<Vec<Room>, String> = consumers.iter().map(|consumer| room(consumer, settings)).collect();
    let rooms = match rooms {
        Ok(rooms) => rooms,
        Err(reason) => return Outcome { decisions: Vec::new(), exposed_watts: None, reason },
    };
    let shared = fill(&rooms, settings);
    let grants = &mut state.grants;
    let mut exposed: Vec<f64> = consumers
        .iter()
        .zip(&rooms)
        .map(|(consumer, room)| {
            let granted = grants.get(&consumer.workload.workload).into_iter().flatten().map(|grant| grant.watts);
            granted.fold(room.in_force, f64::max)
        })
        .collect();
    let total = |exposed: &[f64]| -> f64 { exposed.iter().zip(&rooms).map(|(watts, room)| watts * room.gpus).sum() };
    let over = total(&exposed) > settings.budget_watts + EPSILON;
    let expires = time.plus_seconds(settings.expiry_seconds);
    let mut decisions = Vec::new();
    let apart = |a: f64, b: f64| (a - b).abs() >= (settings.turn_min_ratio * b).max(1.0) || (over && (a - b).abs() >= 1.0);
    // Reductions first; what they free counts once it is in force.
    for (i, room) in
        rooms.iter().enumerate().filter(|(i, room)| shared.caps[*i] < room.in_force && apart(shared.caps[*i], room.in_force))
    {
        decisions.push(decision(&consumers[i], room, shared.caps[i], time, expires, settings));
    }
    for (i, room) in
        rooms.iter().enumerate().filter(|(i, room)| shared.caps[*i] > room.in_force && apart(shared.caps[*i], room.in_force))
    {
        let others = total(&exposed) - exposed[i] * room.gpus;
        let fits = ((settings.budget_watts - others) / room.gpus + EPSILON).floor();
        let watts = shared.caps[i].min(fits);
        if watts >= exposed[i].max(room.in_force) && apart(watts, room.in_force) {
            exposed[i] = watts;
            grants.entry(consumers[i].workload.workload.clone()).or_default().push(Grant { watts, expires });
            decisions.push(decision(&consumers[i], room, watts, time, expires, settings));
        }
    }
    let exposed_watts = total(&exposed);
    let reason = match shared.short {
        Some(need) => format!(
            "the budget of {:.0} W cannot be held: the workloads' lowest caps need {need:.0} W; every cap goes to its lowest",
            settings.budget_watts
        ),
        None if decisions.is_empty() => format!("{exposed_watts:.0} of {:.0} W are given out", settings.budget_watts),
        None => format!("{} cap(s) change; {exposed_watts:.0} of {:.0} W may be drawn", decisions.len(), settings.budget_watts),
    };
    Outcome { decisions, exposed_watts: Some(exposed_watts), reason }
}

fn decision(
    consumer: &Consumer<'_>,
    room: &Room,
    watts: f64,
    time: EventTime,
    expires: EventTime,
    settings: &BudgetSettings,
) -> Decision {
    let workload = consumer.workload;
    let what = if watts < room.in_force { "gives up" } else { "gets" };
    let reason = format!(
        "{what} {:.0} W of each of its {:.0} GPU(s), {:.0} → {watts:.0} W: the budget of {:.0} W goes where a joule does most work",
        (watts - room.in_force).abs(),
        room.gpus,
        room.in_force,
        settings.budget_watts
    );
    let evidence = [
        ("budget_watts", settings.budget_watts),
        ("gpus", room.gpus),
        ("power_limit_watts", room.in_force),
        ("power_limit_min_watts", room.least),
        ("measured_points", consumer.points.len() as f64),
    ];
    Decision {
        id: format!("{}@{time}/{CONTROLLER}", workload.workload),
        workload: workload.workload.clone(),
        time,
        origin: Origin::max(workload.origin, Origin::Measured),
        controller: CONTROLLER.into(),
        controller_version: VERSION.into(),
        action: Action::SetPowerLimit,
        reason,
        from: workload.layout.clone(),
        to: Layout { power_limit_watts: Some(watts), ..workload.layout.clone() },
        generation: Some(workload.generation),
        evidence: evidence.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        expires,
        model_version: consumer.model_version.map(str::to_owned),
        ..Decision::default()
    }
}

#[cfg(test)]
mod tests {
    use eadt_cases::cases;
    use eadt_schemas::v1::Bounds;
    use proptest::prelude::*;

    use super::*;

    fn workload(name: &str, gpus: u32, cap: Option<f64>) -> Workload {
        Workload {
            workload: format!("n/{name}"),
            gpus: Some(gpus),
            gpu_power_limit_watts: Some(400.0),
            mode: UpdateMode::Enforce,
            generation: 1,
            layout: Layout { power_limit_watts: cap, ..Layout::default() },
            ..Workload::default()
        }
    }

    fn law(exponent: f64) -> Vec<PowerPoint> {
        (3..=10)
            .map(|n| f64::from(n) * 40.0)
            .map(|watts| PowerPoint { watts, samples_per_second: watts.powf(exponent) })
            .collect()
    }

    struct Site {
        workloads: Vec<Workload>,
        points: Vec<Vec<PowerPoint>>,
        state: BudgetState,
        settings: BudgetSettings,
    }

    impl Site {
        fn new(budget_watts: f64, workloads: Vec<Workload>, points: Vec<Vec<PowerPoint>>) -> Self {
            Self {
                workloads,
                points,
                state: BudgetState::default(),
                settings: BudgetSettings { budget_watts, ..BudgetSettings::default() },
            }
        }

        fn look(&mut self, minute: u32) -> Outcome {
            let consumers: Vec<Consumer<'_>> = self
                .workloads
                .iter()
                .zip(&self.points)
                .map(|(workload, points)| Consumer { workload, points, model_version: None })
                .collect();
            share(&mut self.state, EventTime::from_seconds(f64::from(minute) * 60.0), &consumers, &self.settings)
        }

        fn apply(&mut self, decision: &Decision, minute: u32) -> bool {
            let late = EventTime::from_seconds(f64::from(minute) * 60.0) >= decision.expires;
            let workload = self.workloads.iter_mut().find(|w| w.workload == decision.workload).unwrap();
            if late || Some(workload.generation) != decision.generation {
                return false;
            }
            workload.layout = decision.to.clone();
            workload.generation += 1;
            true
        }

        /// Caps in force over all GPUs.
        fn watts(&self) -> f64 {
            let of = |w: &Workload| f64::from(w.gpus.unwrap()) * w.layout.power_limit_watts.unwrap_or(400.0);
            self.workloads.iter().map(of).sum()
        }

        fn caps(&self) -> Vec<f64> {
            self.workloads.iter().map(|w| w.layout.power_limit_watts.unwrap_or(400.0)).collect()
        }
    }

    #[test]
    fn watts_go_where_a_joule_does_most_work() {
        let jobs = || vec![workload("flat", 2, None), workload("steep", 2, None)];
        let mut site = Site::new(1_000.0, jobs(), vec![law(0.1), law(0.8)]);
        for minute in 0..6 {
            let outcome = site.look(minute);
            assert!(outcome.decisions.iter().all(|d| d.action == Action::SetPowerLimit && !d.restarts));
            for decision in outcome.decisions {
                assert!(site.apply(&decision, minute));
            }
        }
        let [flat, steep] = site.caps()[..] else { unreachable!() };
        assert!(steep > flat + 150.0, "{flat} W and {steep} W");
        assert!(site.watts() <= 1_000.0 && site.watts() > 980.0, "{}", site.watts());
        // With power enough each gets what it wants, which is less than all there is.
        let mut rich = Site::new(10_000.0, jobs(), vec![law(0.1), law(0.8)]);
        for decision in rich.look(0).decisions {
            assert!(rich.apply(&decision, 0));
        }
        let expected = [0.1, 0.8].map(|exponent: f64| 400.0 * 0.93_f64.powf(1.0 / exponent));
        for (cap, expected) in rich.caps().iter().zip(expected) {
            assert!((cap - expected.max(120.0)).abs() < 8.0, "{cap} W, {expected} W");
        }
    }

    #[test]
    fn the_filling_is_as_good_as_any_other() {
        // A grid over all divisions of the budget: none does more work.
        let (a, b) = (law(0.3), law(0.7));
        let settings = BudgetSettings { budget_watts: 450.0, max_slowdown_ratio: 0.0, ..BudgetSettings::default() };
        let room = |points: &[PowerPoint]| Room {
            gpus: 1.0,
            least: 120.0,
            most: 400.0,
            in_force: 400.0,
            curve: Concave::of(points, 120.0, 400.0),
        };
        let rooms = [room(&a), room(&b)];
        let work = |room: &Room, cap: f64| {
            let above = room.curve.knots.partition_point(|knot| knot.0 < cap).clamp(1, room.curve.knots.len() - 1);
            let (x, y) = (room.curve.knots[above - 1], room.curve.knots[above]);
            x.1 + (y.1 - x.1) * (cap - x.0) / (y.0 - x.0)
        };
        let ours = fill(&rooms, &settings).caps;
        let done = work(&rooms[0], ours[0]) + work(&rooms[1], ours[1]);
        for tenth in 0..=2_800 {
            let first = 120.0 + f64::from(tenth) / 10.0;
            let second = (450.0 - first).clamp(120.0, 400.0);
            if first + second <= 450.0 {
                // A watt that rounding leaves is no loss worth a word.
                assert!(work(&rooms[0], first) + work(&rooms[1], second) <= done + 0.004, "{first} W is better than {ours:?}");
            }
        }
    }

    #[test]
    fn a_budget_that_cannot_be_held_is_said_and_approached() {
        let mut site = Site::new(200.0, vec![workload("a", 2, None), workload("b", 1, None)], vec![vec![], vec![]]);
        let outcome = site.look(0);
        assert!(outcome.reason.contains("cannot be held") && outcome.reason.contains("360 W"), "{}", outcome.reason);
        for decision in outcome.decisions {
            assert!(site.apply(&decision, 0));
        }
        assert_eq!(site.caps(), [120.0, 120.0]);
    }

    #[test]
    fn what_nobody_can_know_or_turn_is_respected() {
        let unknown = Workload { gpu_power_limit_watts: None, ..workload("a", 1, None) };
        let outcome = Site::new(500.0, vec![unknown], vec![vec![]]).look(0);
        assert!(outcome.decisions.is_empty() && outcome.exposed_watts.is_none() && outcome.reason.contains("n/a"), "{outcome:?}");
        // Observed and paused workloads keep their power, and it counts.
        let observed = Workload { mode: UpdateMode::Observe, ..workload("a", 1, Some(300.0)) };
        let mut site = Site::new(500.0, vec![observed, workload("b", 1, None)], vec![vec![], law(0.5)]);
        let outcome = site.look(0);
        assert_eq!(outcome.decisions.len(), 1);
        assert_eq!((outcome.decisions[0].workload.as_str(), outcome.decisions[0].to.power_limit_watts), ("n/b", Some(200.0)));
    }

    #[test]
    fn a_raise_waits_until_the_reduction_that_pays_for_it_is_in_force() {
        let mut site =
            Site::new(500.0, vec![workload("a", 1, Some(250.0)), workload("b", 1, Some(250.0))], vec![law(0.05), law(0.9)]);
        let first = site.look(0);
        assert_eq!(first.decisions.len(), 1, "{first:?}");
        assert_eq!(first.decisions[0].workload, "n/a");
        assert_eq!(site.look(1).decisions.len(), 1, "not applied yet: asked again, and no raise");
        site.apply(&first.decisions[0], 1);
        let second = site.look(2);
        assert_eq!((second.decisions.len(), second.decisions[0].workload.as_str()), (1, "n/b"));
        assert!(second.decisions[0].to.power_limit_watts.unwrap() > 300.0);
    }

    proptest! {
        #![proptest_config(cases(150))]

        /// Whatever is applied, late or never and in whatever order, and however the curves, the bounds and the workloads' number
        /// change: caps in force never sum to more than the budget, once they did not.
        #[test]
        fn the_budget_is_never_exceeded(
            gpus in prop::collection::vec(1_u32..9, 1..6),
            budget_per_gpu in 130.0..420.0_f64,
            exponents in prop::collection::vec(prop::collection::vec(0.02..1.5_f64, 6), 30),
            applied in prop::collection::vec(prop::collection::vec(0_u8..4, 8), 30),
            bounded in prop::option::of(100.0..300.0_f64),
        ) {
            let count: u32 = gpus.iter().sum();
            let budget = (budget_per_gpu * f64::from(count)).floor();
            let start = (budget / f64::from(count)).floor().min(400.0);
            let workloads: Vec<Workload> = gpus
                .iter()
                .enumerate()
                .map(|(i, gpus)| {
                    let bounds = Bounds { power_limit_watts_max: bounded.filter(|_| i == 0), ..Bounds::default() };
                    Workload { bounds, ..workload(&i.to_string(), *gpus, Some(start)) }
                })
                .collect();
            let points = vec![Vec::new(); workloads.len()];
            let mut site = Site::new(budget, workloads, points);
            let mut waiting: Vec<Decision> = Vec::new();
            for (minute, (exponents, applied)) in exponents.iter().zip(&applied).enumerate() {
                for (points, exponent) in site.points.iter_mut().zip(exponents) {
                    *points = law(*exponent);
                }
                let outcome = site.look(minute as u32);
                prop_assert!(outcome.exposed_watts.unwrap() <= budget + 1e-3, "{outcome:?}");
                waiting.extend(outcome.decisions);
                for what in applied {
                    if waiting.is_empty() {
                        break;
                    }
                    // The oldest or the newest comes to be applied, one is lost, or nothing happens.
                    let chosen = match what {
                        0 | 2 => Some(waiting.remove(0)),
                        1 => waiting.pop(),
                        _ => None,
                    };
                    if let Some(decision) = chosen.filter(|_| *what != 2) {
                        site.apply(&decision, minute as u32);
                    }
                    prop_assert!(site.watts() <= budget + 1e-6, "minute {minute}: {} of {budget} W", site.watts());
                }
                // A restart changes nothing.
                let written = serde_json::to_string(&site.state).unwrap();
                site.state = serde_json::from_str(&written).unwrap();
            }
        }
    }
}
