//! The terminal during the view: raw mode and a screen of its own, always restored.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use crossterm::event::{Event, KeyEvent, KeyEventKind};
use crossterm::terminal::{self, EnterAlternateScreen, LeaveAlternateScreen};
use crossterm::{cursor, execute};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::buffer::Buffer;
use ratatui::style::{Color, Modifier};

use super::frame::ViewFrame;
use super::keys::{ViewAction, ViewState};
use super::view;

/// The terminal; dropping it gives it back.
#[derive(Debug)]
pub struct TerminalScreen {
    terminal: Terminal<CrosstermBackend<std::io::Stdout>>,
}

impl TerminalScreen {
    pub fn open() -> anyhow::Result<Self> {
        enter()?;
        execute!(std::io::stdout(), terminal::Clear(terminal::ClearType::All))?;
        Ok(Self { terminal: Terminal::new(CrosstermBackend::new(std::io::stdout()))? })
    }

    fn begin_anew(&mut self) -> anyhow::Result<()> {
        enter()?;
        execute!(std::io::stdout(), terminal::Clear(terminal::ClearType::All))?;
        self.terminal = Terminal::new(CrosstermBackend::new(std::io::stdout()))?;
        Ok(())
    }

    pub fn draw(&mut self, picture: &ViewFrame, state: &mut ViewState) -> anyhow::Result<()> {
        if CONTINUED.swap(false, Ordering::SeqCst) {
            // The program that stopped this process may have changed the terminal's mode.
            leave();
            self.begin_anew()?;
        }
        let draw = |frame: &mut ratatui::Frame| {
            view::draw(frame, picture, state);
            if eadt_service::logs::is_colourless() {
                remove_colours(frame.buffer_mut());
            }
        };
        self.terminal.draw(draw).context("cannot draw the view")?;
        Ok(())
    }

    /// Returns whether the terminal was closed. Reading keys from one that is gone would never end.
    pub fn is_closed() -> bool {
        !std::io::stdin().is_terminal()
    }

    /// Gives every key that was pressed to the view; returns whether anything happened, and whether it is to end. Waits at most
    /// `wait`.
    pub fn take_keys(&mut self, state: &mut ViewState, wait: Duration) -> anyhow::Result<(bool, bool)> {
        let (mut happened, mut wait) = (false, wait);
        while crossterm::event::poll(wait).context("cannot read keys")? {
            wait = Duration::ZERO;
            happened = true;
            let Event::Key(key @ KeyEvent { kind: KeyEventKind::Press | KeyEventKind::Repeat, .. }) = crossterm::event::read()?
            else {
                continue;
            };
            match state.on_key(key) {
                ViewAction::Stay => {}
                ViewAction::Leave => return Ok((true, true)),
                ViewAction::Interrupt => signal(rustix::process::Signal::INT),
                ViewAction::Suspend => {
                    leave();
                    signal(rustix::process::Signal::TSTP);
                    await_continue();
                    // A terminal that is made anew draws everything; clearing this one would ask it where its cursor is.
                    self.begin_anew()?;
                }
            }
        }
        Ok((happened, false))
    }
}

/// Removes the colours; text with only a background colour is reversed.
fn remove_colours(buffer: &mut Buffer) {
    for cell in &mut buffer.content {
        if cell.bg != Color::Reset {
            cell.modifier.insert(Modifier::REVERSED);
        }
        (cell.fg, cell.bg) = (Color::Reset, Color::Reset);
    }
}

impl Drop for TerminalScreen {
    fn drop(&mut self) {
        give_terminal_back();
    }
}

/// Returns after `fg`. Another thread may take the signal, so that this one goes on for a moment before the process stops.
fn await_continue() {
    let begun = std::time::Instant::now();
    while !CONTINUED.swap(false, Ordering::SeqCst) && begun.elapsed() < Duration::from_millis(500) {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sends a signal to this process, as the terminal would outside of raw mode.
fn signal(signal: rustix::process::Signal) {
    if let Err(error) = rustix::process::kill_process(rustix::process::getpid(), signal) {
        tracing::warn!(%error, "the key's signal could not be sent");
    }
}

fn enter() -> anyhow::Result<()> {
    VIEWING.store(true, Ordering::SeqCst);
    terminal::enable_raw_mode().context("cannot take the terminal")?;
    execute!(std::io::stdout(), EnterAlternateScreen, cursor::Hide).context("cannot take the terminal")
}

fn leave() {
    let left = execute!(std::io::stdout(), cursor::Show, LeaveAlternateScreen).and_then(|()| terminal::disable_raw_mode());
    if let Err(error) = left {
        tracing::debug!(%error, "the terminal could not be restored");
    }
}

/// Set while the view has the terminal.
static VIEWING: AtomicBool = AtomicBool::new(false);
/// Set when the process goes on after a stop.
static CONTINUED: AtomicBool = AtomicBool::new(false);

/// Leaves the view, if there is one: also for an end that runs no destructors.
pub fn give_terminal_back() {
    if VIEWING.swap(false, Ordering::SeqCst) {
        leave();
    }
}

/// Notices that the process was stopped and goes on (`kill -STOP`, `fg`): the view is drawn anew then. Needs a runtime.
pub fn watch_continues() {
    let kind = tokio::signal::unix::SignalKind::from_raw(rustix::process::Signal::CONT.as_raw());
    match tokio::signal::unix::signal(kind) {
        Ok(mut signals) => drop(eadt_service::supervise::spawn_detached(&eadt_service::tasks::CONTINUES, async move {
            while signals.recv().await.is_some() {
                CONTINUED.store(true, Ordering::SeqCst);
            }
            anyhow::Ok(())
        })),
        Err(error) => tracing::debug!(%error, "a stop of the process will not be noticed"),
    }
}

#[cfg(test)]
mod tests {
    use ratatui::layout::Rect;
    use ratatui::style::Style;

    use super::*;

    #[test]
    fn without_colours_a_badge_is_reversed_and_marks_stay() {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 3, 1));
        buffer.set_string(0, 0, "a", Style::new().fg(Color::Black).bg(Color::Yellow));
        buffer.set_string(1, 0, "b", Style::new().fg(Color::Red).add_modifier(Modifier::BOLD));
        remove_colours(&mut buffer);
        let mut expected = Buffer::empty(Rect::new(0, 0, 3, 1));
        expected.set_string(0, 0, "a", Style::new().add_modifier(Modifier::REVERSED));
        expected.set_string(1, 0, "b", Style::new().add_modifier(Modifier::BOLD));
        assert_eq!(buffer, expected);
    }
}
