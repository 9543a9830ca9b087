//! Actions of the keys: sorting, searching, selecting. No terminal here.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::frame::{ViewFrame, WorkloadRow};

/// By what the workloads are sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum SortKey {
    #[default]
    Energy,
    Power,
    JoulesPerSample,
    Saved,
    State,
    Name,
}

impl SortKey {
    const ALL: [Self; 6] = [Self::Energy, Self::Power, Self::JoulesPerSample, Self::Saved, Self::State, Self::Name];

    pub const fn title(self) -> &'static str {
        match self {
            Self::Energy => "energy",
            Self::Power => "power",
            Self::JoulesPerSample => "J/sample",
            Self::Saved => "saved",
            Self::State => "state",
            Self::Name => "name",
        }
    }

    fn next(self) -> Self {
        let at = Self::ALL.iter().position(|key| *key == self).unwrap_or_default();
        Self::ALL[(at + 1) % Self::ALL.len()]
    }

    /// Sorts the largest first, texts by the alphabet, and unknown values last.
    pub fn sort(self, rows: &mut [&WorkloadRow], reversed: bool) {
        let figure = |row: &WorkloadRow| match self {
            Self::Energy => row.energy_joules,
            Self::Power => row.power_watts,
            Self::JoulesPerSample => row.joules_per_sample,
            Self::Saved => row.saving.map(|saving| saving.joules),
            Self::State | Self::Name => None,
        };
        rows.sort_by(|a, b| {
            let by_figure = match (figure(a), figure(b)) {
                (Some(a), Some(b)) if reversed => a.total_cmp(&b),
                (Some(a), Some(b)) => b.total_cmp(&a),
                (a, b) => b.is_some().cmp(&a.is_some()),
            };
            let by_text = match self {
                Self::State => a.state.cmp(b.state),
                Self::Name => a.name.cmp(&b.name),
                _ => std::cmp::Ordering::Equal,
            };
            by_figure.then(if reversed { by_text.reverse() } else { by_text }).then_with(|| a.name.cmp(&b.name))
        });
    }
}

/// Action of the loop around the view after a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ViewAction {
    Stay,
    /// Drain and end.
    Leave,
    /// Interrupt, like Ctrl-C in a terminal that is not in raw mode.
    Interrupt,
    /// Suspend, like Ctrl-Z.
    Suspend,
}

/// Page on top of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ViewPage {
    #[default]
    Table,
    Details,
    Help,
}

/// Place of the cursor while the order of the rows changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum CursorPlace {
    /// On the first row, whichever that is: no key has moved it.
    #[default]
    FirstRow,
    /// On the selected workload.
    Workload,
}

/// Stage of the process behind the view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ViewStage {
    #[default]
    Running,
    /// The user ended it; work in progress is finished first.
    Ending,
}

/// Position of the user in the view.
#[derive(Debug, Default)]
pub struct ViewState {
    pub sort: SortKey,
    pub reversed: bool,
    pub page: ViewPage,
    pub paused: bool,
    pub search: String,
    /// Letters go into the search.
    pub searching: bool,
    /// The name that the cursor is on; a workload keeps it wherever sorting puts it.
    pub selected: Option<String>,
    cursor: CursorPlace,
    pub stage: ViewStage,
    /// Names in the order of the screen.
    order: Vec<String>,
    /// First row on the screen.
    top: usize,
    /// Rows that fitted last time.
    fitting: usize,
    /// First line of the details.
    pub scroll: usize,
}

impl ViewState {
    pub fn sorted_by(sort: SortKey) -> Self {
        Self { sort, ..Self::default() }
    }

    /// Returns the rows to show, in order, of as many as fit; and the number of the first, from 0, and of all that match.
    pub fn arrange<'a>(&mut self, picture: &'a ViewFrame, fitting: usize) -> (Vec<&'a WorkloadRow>, usize, usize) {
        let wanted = self.search.to_lowercase();
        let mut rows: Vec<&WorkloadRow> =
            picture.rows.iter().filter(|row| wanted.is_empty() || row.name.to_lowercase().contains(&wanted)).collect();
        self.sort.sort(&mut rows, self.reversed);
        self.order = rows.iter().map(|row| row.name.clone()).collect();
        self.fitting = fitting.max(1);
        if self.cursor == CursorPlace::FirstRow || self.position().is_none() {
            self.selected = self.order.first().cloned();
        }
        let at = self.position().unwrap_or_default();
        let last = self.order.len().saturating_sub(self.fitting);
        self.top = self.top.clamp((at + 1).saturating_sub(self.fitting), at).min(last);
        let shown = rows.iter().skip(self.top).take(self.fitting).copied().collect();
        (shown, self.top, self.order.len())
    }

    fn position(&self) -> Option<usize> {
        let selected = self.selected.as_ref()?;
        self.order.iter().position(|name| name == selected)
    }

    fn select(&mut self, at: usize) {
        self.selected = self.order.get(at.min(self.order.len().saturating_sub(1))).cloned();
        self.cursor = CursorPlace::Workload;
        self.scroll = 0;
    }

    fn move_by(&mut self, rows: isize) {
        if self.page == ViewPage::Details {
            self.scroll = self.scroll.saturating_add_signed(rows);
        } else {
            self.select(self.position().unwrap_or_default().saturating_add_signed(rows));
        }
    }

    /// Moves to a row of the table, or to a line of the details; beyond the last one to the last one.
    fn move_to(&mut self, row: usize) {
        if self.page == ViewPage::Details {
            self.scroll = row;
        } else {
            self.select(row);
        }
    }

    pub fn on_key(&mut self, key: KeyEvent) -> ViewAction {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => {
                    self.stage = ViewStage::Ending;
                    ViewAction::Interrupt
                }
                KeyCode::Char('z') => ViewAction::Suspend,
                _ => ViewAction::Stay,
            };
        }
        if self.searching {
            self.on_search_key(key.code);
            return ViewAction::Stay;
        }
        match key.code {
            KeyCode::Char('q') if self.page == ViewPage::Table => {
                self.stage = ViewStage::Ending;
                return ViewAction::Leave;
            }
            KeyCode::Esc if self.page == ViewPage::Table => self.search.clear(),
            KeyCode::Char('q') | KeyCode::Esc => self.page = ViewPage::Table,
            KeyCode::Char('?' | 'h') => self.page = if self.page == ViewPage::Help { ViewPage::Table } else { ViewPage::Help },
            KeyCode::Enter if self.page == ViewPage::Details => self.page = ViewPage::Table,
            KeyCode::Enter => (self.page, self.scroll, self.cursor) = (ViewPage::Details, 0, CursorPlace::Workload),
            KeyCode::Char('/') => (self.searching, self.page) = (true, ViewPage::Table),
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Char('r') => self.reversed = !self.reversed,
            KeyCode::Down | KeyCode::Char('j') => self.move_by(1),
            KeyCode::Up | KeyCode::Char('k') => self.move_by(-1),
            KeyCode::PageDown => self.move_by(self.fitting as isize),
            KeyCode::PageUp => self.move_by(-(self.fitting as isize)),
            KeyCode::Home | KeyCode::Char('g') => self.move_to(0),
            KeyCode::End | KeyCode::Char('G') => self.move_to(usize::MAX),
            _ => {}
        }
        ViewAction::Stay
    }

    fn on_search_key(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.searching = false,
            KeyCode::Esc => {
                self.searching = false;
                self.search.clear();
            }
            KeyCode::Backspace => drop(self.search.pop()),
            KeyCode::Char(letter) if self.search.len() < 253 => self.search.push(letter),
            KeyCode::Down => self.move_by(1),
            KeyCode::Up => self.move_by(-1),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(count: usize) -> ViewFrame {
        let row = |number: usize| WorkloadRow {
            name: format!("team-{}/train-{number:03}", number % 3),
            power_watts: (!number.is_multiple_of(7)).then_some(100.0 + number as f64),
            energy_joules: Some(1000.0 * (number * 37 % 101) as f64),
            ..WorkloadRow::default()
        };
        ViewFrame { rows: (0..count).map(row).collect(), ..ViewFrame::default() }
    }

    fn press(state: &mut ViewState, picture: &ViewFrame, keys: &str) {
        for key in keys.chars() {
            let code = match key {
                '\n' => KeyCode::Enter,
                '\u{1b}' => KeyCode::Esc,
                '>' => KeyCode::PageDown,
                key => KeyCode::Char(key),
            };
            assert_eq!(state.on_key(code.into()), ViewAction::Stay, "{key:?}");
            state.arrange(picture, 10);
        }
    }

    #[test]
    fn the_cursor_stays_on_its_workload_and_the_screen_follows_it() {
        let picture = picture(100);
        let mut state = ViewState { sort: SortKey::Power, ..ViewState::default() };
        let (rows, top, all) = state.arrange(&picture, 10);
        assert_eq!((rows.len(), rows[0].name.as_str(), top, all), (10, "team-0/train-099", 0, 100));
        press(&mut state, &picture, "jj>");
        assert_eq!(state.arrange(&picture, 10).1, 3);
        let selected = state.selected.clone();
        press(&mut state, &picture, "r");
        assert_eq!(state.selected, selected);
        let (rows, ..) = state.arrange(&picture, 10);
        assert!(rows.iter().any(|row| Some(&row.name) == selected.as_ref()));
        press(&mut state, &picture, "G");
        let (rows, top, _) = state.arrange(&picture, 10);
        assert_eq!((top, rows[9].power_watts), (90, None), "what is not known comes last");
        press(&mut state, &picture, "g");
        assert_eq!(state.arrange(&picture, 10).1, 0);
        // A smaller screen.
        press(&mut state, &picture, "G");
        assert_eq!(state.arrange(&picture, 3).1, 97);
        assert_eq!(state.arrange(&picture, 1000).1, 0);
    }

    #[test]
    fn the_view_begins_at_the_first_row_until_a_key_moves_the_cursor() {
        let waiting = |mut picture: ViewFrame| {
            picture.rows.iter_mut().for_each(|row| row.energy_joules = None);
            picture
        };
        let first = |state: &mut ViewState, picture: &ViewFrame| {
            let (rows, top, _) = state.arrange(picture, 10);
            (rows[0].name.clone(), top, state.selected.clone())
        };
        // Nothing is known of any, so the order is that of the names; then that of the figures. Another order is no move.
        let mut state = ViewState::default();
        for picture in [waiting(picture(40)), picture(40), picture(80)] {
            let (name, top, selected) = first(&mut state, &picture);
            assert_eq!((top, selected), (0, Some(name)));
        }
        press(&mut state, &picture(40), "sr");
        let (name, top, selected) = first(&mut state, &picture(40));
        assert_eq!((top, selected), (0, Some(name)));
        // A key moved it, or opened the details: it stays on its workload.
        for keys in ["j", "\n"] {
            let mut state = ViewState::default();
            state.arrange(&waiting(picture(40)), 10);
            press(&mut state, &waiting(picture(40)), keys);
            let chosen = state.selected.clone();
            state.arrange(&picture(40), 10);
            assert_eq!(state.selected, chosen, "{keys:?}");
        }
    }

    #[test]
    fn the_first_and_the_last_of_the_details_are_lines_of_the_same_workload() {
        let picture = picture(100);
        let mut state = ViewState::default();
        state.arrange(&picture, 10);
        press(&mut state, &picture, "jj\n");
        let chosen = state.selected.clone();
        for (key, scroll) in [("G", usize::MAX), ("g", 0), ("j", 1)] {
            press(&mut state, &picture, key);
            assert_eq!((&state.selected, state.scroll), (&chosen, scroll), "{key}");
        }
    }

    #[test]
    fn a_search_takes_letters_and_esc_ends_it() {
        let picture = picture(100);
        let mut state = ViewState::default();
        state.arrange(&picture, 10);
        press(&mut state, &picture, "/TEAM-1/\n");
        assert_eq!(state.arrange(&picture, 10).2, 33);
        press(&mut state, &picture, "\n");
        assert_eq!(state.page, ViewPage::Details);
        press(&mut state, &picture, "q\u{1b}");
        assert_eq!((state.page, state.arrange(&picture, 10).2), (ViewPage::Table, 100));
        press(&mut state, &picture, "/nobody\n");
        assert_eq!(state.arrange(&picture, 10).2, 0);
        press(&mut state, &picture, "\u{1b}?");
        assert_eq!(state.page, ViewPage::Help);
        assert_eq!(state.on_key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)), ViewAction::Interrupt);
        assert_eq!(state.on_key(KeyEvent::new(KeyCode::Char('z'), KeyModifiers::CONTROL)), ViewAction::Suspend);
        press(&mut state, &picture, "q");
        assert_eq!(state.on_key(KeyCode::Char('q').into()), ViewAction::Leave);
    }
}
