//! Findings as a table for terminals and as a page.

use std::fmt::Write;

use super::Findings;

impl Findings {
    /// A table; ratios in percent.
    pub fn text(&self) -> String {
        let percent = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), |value| format!("{:.2}", value * 100.0));
        let mut text = String::new();
        let mut split = "";
        for line in &self.lines {
            if line.split != split {
                split = &line.split;
                let columns = "throughput   power  % of  gain over equal   worse than  starves";
                writeln!(text, "\n{split:<27}{columns}").expect("writing to a String cannot fail");
                let columns = "   error %  error %  oracle   mean %    max %     equal %    one %";
                writeln!(text, "{:<27}{columns}", "").expect("writing to a String cannot fail");
            }
            let score = &line.score;
            writeln!(
                text,
                "  {:<25}{:>10}{:>9}{:>8.2}{:>9.1}{:>9.1}{:>12.1}{:>9.1}",
                line.method.title(),
                percent(score.throughput_error_ratio),
                percent(score.power_error_ratio),
                score.of_oracle_ratio * 100.0,
                score.gain_mean_ratio * 100.0,
                score.gain_max_ratio * 100.0,
                score.worse_than_equal_ratio * 100.0,
                score.starved_ratio * 100.0,
            )
            .expect("writing to a String cannot fail");
        }
        text
    }
}
