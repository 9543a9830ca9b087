//! Schedule of times at which processes may be restarted. Pure: the time zone database is part of the program.

use eadt_schemas::EventTime;
use jiff::Timestamp;
use jiff::civil::Weekday as Day;
use jiff::tz::{TimeZone, TimeZoneDatabase};

use super::problem::{PolicyProblem, ProblemReason};
use super::spec::{RestartScheduleSpec, RestartWindow, Weekday};

const MINUTES_OF_DAY: u32 = 24 * 60;

/// The windows of a week in which restarts are allowed.
#[derive(Debug, Clone, PartialEq)]
pub struct RestartSchedule {
    zone_name: String,
    zone: TimeZone,
    windows: Vec<DailyWindow>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct DailyWindow {
    days: Vec<Day>,
    start: u32,
    end: u32,
    /// The text as written.
    words: String,
}

impl RestartSchedule {
    /// Reads the restart windows of a policy.
    pub fn read(spec: &RestartScheduleSpec) -> Result<Self, PolicyProblem> {
        let invalid = |message: String| PolicyProblem::new(ProblemReason::InvalidSchedule, message);
        let name = &spec.time_zone;
        let zone = TimeZoneDatabase::bundled().get(name).map_err(|_| {
            let hint = "name one of the IANA database, such as Europe/Berlin";
            invalid(format!("spec.schedule.timeZone: there is no time zone {name:?}; {hint}"))
        })?;
        let windows = spec.restart_windows.iter().enumerate().map(|(index, window)| {
            DailyWindow::read(window)
                .ok_or_else(|| invalid(format!("spec.schedule.restartWindows[{index}]: start and end are times such as 22:00")))
        });
        Ok(Self { zone_name: name.clone(), zone, windows: windows.collect::<Result<_, _>>()? })
    }

    /// Returns the reason why nothing may be restarted now; `None` if it may.
    pub fn closed(&self, now: EventTime) -> Option<String> {
        // Every time that an event can have is one that jiff can have.
        let local = Timestamp::from_microsecond(now.micros()).unwrap_or(Timestamp::UNIX_EPOCH).to_zoned(self.zone.clone());
        let minute = u32::from(local.hour().unsigned_abs()) * 60 + u32::from(local.minute().unsigned_abs());
        if self.windows.iter().any(|window| window.open(local.weekday(), minute)) {
            return None;
        }
        let windows: Vec<_> = self.windows.iter().map(|window| window.words.as_str()).collect();
        Some(format!(
            "restarts are allowed {} ({}); there it is {} now",
            windows.join(" and "),
            self.zone_name,
            local.strftime("%A %H:%M")
        ))
    }
}

impl DailyWindow {
    fn read(spec: &RestartWindow) -> Option<Self> {
        let minutes = |text: &str| {
            let (hours, minutes) = text.split_once(':')?;
            let (hours, minutes) = (hours.parse::<u32>().ok()?, minutes.parse::<u32>().ok()?);
            (hours < 24 && minutes < 60).then_some(hours * 60 + minutes)
        };
        let all = || vec![Day::Monday, Day::Tuesday, Day::Wednesday, Day::Thursday, Day::Friday, Day::Saturday, Day::Sunday];
        let days = spec.days.as_ref().map_or_else(all, |days| days.iter().copied().map(Day::from).collect());
        let on = match &spec.days {
            None => "daily".to_owned(),
            Some(days) => days.iter().map(|day| format!("{day:?}")).collect::<Vec<_>>().join(", "),
        };
        let words = format!("{on} from {} to {}", spec.start, spec.end);
        Some(Self { days, start: minutes(&spec.start)?, end: minutes(&spec.end)?, words })
    }

    fn open(&self, day: Day, minute: u32) -> bool {
        debug_assert!(minute < MINUTES_OF_DAY);
        let begins = |day: Day| self.days.contains(&day);
        if self.start < self.end {
            return begins(day) && (self.start..self.end).contains(&minute);
        }
        (begins(day) && minute >= self.start) || (begins(day.previous()) && minute < self.end)
    }
}

impl From<Weekday> for Day {
    fn from(day: Weekday) -> Self {
        match day {
            Weekday::Monday => Self::Monday,
            Weekday::Tuesday => Self::Tuesday,
            Weekday::Wednesday => Self::Wednesday,
            Weekday::Thursday => Self::Thursday,
            Weekday::Friday => Self::Friday,
            Weekday::Saturday => Self::Saturday,
            Weekday::Sunday => Self::Sunday,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(zone: &str, days: Option<&[Weekday]>, start: &str, end: &str) -> Result<RestartSchedule, PolicyProblem> {
        let window = RestartWindow { days: days.map(<[_]>::to_vec), start: start.into(), end: end.into() };
        RestartSchedule::read(&RestartScheduleSpec { time_zone: zone.into(), restart_windows: vec![window] })
    }

    fn open(schedule: &RestartSchedule, time: &str) -> bool {
        schedule.closed(time.parse().unwrap()).is_none()
    }

    #[test]
    fn a_window_within_a_day_has_its_edges() {
        let schedule = schedule("UTC", Some(&[Weekday::Saturday]), "09:30", "17:00").unwrap();
        // 2026-11-21 is a Saturday.
        for (time, expected) in [
            ("2026-11-21T09:29:59Z", false),
            ("2026-11-21T09:30:00Z", true),
            ("2026-11-21T16:59:59Z", true),
            ("2026-11-21T17:00:00Z", false),
            ("2026-11-22T12:00:00Z", false),
        ] {
            assert_eq!(open(&schedule, time), expected, "{time}");
        }
    }

    #[test]
    fn a_window_over_midnight_belongs_to_the_day_on_which_it_begins() {
        let schedule = schedule("UTC", Some(&[Weekday::Sunday]), "22:00", "06:00").unwrap();
        for (time, expected) in [
            ("2026-11-22T05:00:00Z", false),
            ("2026-11-22T22:00:00Z", true),
            ("2026-11-23T05:59:00Z", true),
            ("2026-11-23T06:00:00Z", false),
            ("2026-11-23T22:00:00Z", false),
        ] {
            assert_eq!(open(&schedule, time), expected, "{time}");
        }
        let always = self::schedule("UTC", None, "00:00", "00:00").unwrap();
        assert!(open(&always, "2026-11-22T00:00:00Z") && open(&always, "2026-11-22T23:59:00Z"));
    }

    #[test]
    fn time_zones_and_their_summers_count() {
        let schedule = schedule("Europe/Berlin", None, "22:00", "06:00").unwrap();
        assert!(open(&schedule, "2026-07-01T20:00:00Z"), "22:00 in summer");
        assert!(!open(&schedule, "2026-01-01T20:00:00Z"), "21:00 in winter");
        let text = schedule.closed("2026-01-01T20:00:00Z".parse().unwrap()).unwrap();
        assert_eq!(text, "restarts are allowed daily from 22:00 to 06:00 (Europe/Berlin); there it is Thursday 21:00 now");
    }

    #[test]
    fn what_is_no_time_is_named() {
        let problem = schedule("Mars/Olympus", None, "22:00", "06:00").unwrap_err();
        assert!(problem.reason == ProblemReason::InvalidSchedule && problem.message.contains("Mars/Olympus"), "{problem}");
        assert!(schedule("UTC", None, "25:00", "06:00").unwrap_err().message.contains("restartWindows[0]"));
    }
}
