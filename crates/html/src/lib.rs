//! One style for every HTML file that a command writes: report, tuning, backtest, partition.
//!
//! In: a title, a heading and the rules that a chart needs of its own. Out: one file that loads nothing, as its own
//! security policy requires, in light and dark, at any width and on paper. It knows nothing of what is reported.

use eadt_schemas::visible_text;

/// The end of a file that [`begin`] began.
pub const END: &str = "</main>\n</body>\n</html>\n";

const HEAD: &str = r#"<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
"#;

const STYLE: &str = ":root { color-scheme: light dark; --paper: #fff; --text: #1a1a1a; --line: #8886; --ink: #0b5cad; --mark: #a34a00; \
                     --good: #0a6b2f; --bad: #b3261e; --power: #7a2f8f; --shade: #8882; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14171a; --text: #e8e8e8; --ink: #6bb5ff; --mark: #ffab5c; --good: #6fd08c; --bad: #ff8a80; --power: #d79be8; --shade: #fff1; }
}
body { font: 15px/1.5 system-ui, sans-serif; margin: 0; background: var(--paper); color: var(--text); }
main { margin: 2rem auto; max-width: 80rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; } h3 { font-size: 1rem; }
h1, h2, h3, p, li { overflow-wrap: anywhere; }
a { color: var(--ink); }
.verdict { font-size: 1.15rem; font-weight: 600; border-left: .3rem solid var(--ink); padding-left: .8rem; }
.legend, .small { opacity: .85; } .legend { font-size: .85rem; }
nav ul { columns: 18rem; padding-left: 1.2rem; }
.scroll { overflow-x: auto; max-width: 100%; } .scroll:focus-visible { outline: 2px solid var(--ink); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .85rem; }
th, td { padding: .25rem .45rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: bottom; }
td:first-child { overflow-wrap: anywhere; min-width: 8rem; }
th { font-weight: 600; } tfoot td { font-weight: 600; }
.n { text-align: right; white-space: nowrap; } th.n { white-space: normal; }
svg { width: 100%; max-width: 64rem; height: auto; } svg text { font-size: 12px; fill: currentColor; } svg .small { font-size: 11px; }
.axis { stroke: var(--line); }
@page { size: A4 landscape; margin: 12mm; }
@media print {
  body { background: none; font-size: 12px; } main { margin: 0; max-width: none; padding: 0; }
  .scroll { overflow: visible; } table { font-size: .78rem; width: 100%; } th, td { padding: .2rem .3rem; }
  section, svg, tr { break-inside: avoid-page; } h1, h2, h3, .verdict, summary { break-after: avoid-page; } thead { display: table-header-group; }
  tfoot { display: table-row-group; }
  p, li { orphans: 3; widows: 3; }
}
";

/// Begins a file: its title in the browser, its heading, and rules of its own in CSS (trusted, not escaped).
pub fn begin(title: &str, heading: &str, rules: &str) -> String {
    let (title, heading) = (escape(title), escape(heading));
    format!("{HEAD}<title>{title}</title>\n<style>\n{STYLE}{rules}</style>\n</head>\n<body>\n<main>\n<h1>{heading}</h1>\n")
}

/// Returns a table that can be scrolled sideways, with the keys too. The label names it to screen readers and must be
/// unique in a file; columns from `texts` on hold numbers and are aligned right.
pub fn table<H, R>(label: &str, head: &[H], texts: usize, rows: impl IntoIterator<Item = R>) -> String
where
    H: AsRef<str>,
    R: AsRef<[String]>,
{
    table_with_total(label, head, texts, rows, None)
}

/// Returns the same with a last row that sums up the others.
pub fn table_with_total<H, R>(
    label: &str,
    head: &[H],
    texts: usize,
    rows: impl IntoIterator<Item = R>,
    total: Option<&[String]>,
) -> String
where
    H: AsRef<str>,
    R: AsRef<[String]>,
{
    let mut out =
        format!("<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{}\"><table>\n<thead>", escape(label));
    push_row(&mut out, ["<th scope=\"col\"", "</th>"], head, texts);
    out.push_str("</thead>\n<tbody>\n");
    for row in rows {
        push_row(&mut out, ["<td", "</td>"], row.as_ref(), texts);
        out.push('\n');
    }
    out.push_str("</tbody>\n");
    if let Some(cells) = total {
        out.push_str("<tfoot>");
        push_row(&mut out, ["<td", "</td>"], cells, texts);
        out.push_str("</tfoot>\n");
    }
    out.push_str("</table></div>\n");
    out
}

/// Appends a row whose cells are begun and ended by these tags.
fn push_row<T: AsRef<str>>(out: &mut String, [begin, end]: [&str; 2], cells: &[T], texts: usize) {
    out.push_str("<tr>");
    for (column, text) in cells.iter().enumerate() {
        out.push_str(begin);
        out.push_str(if column < texts { ">" } else { " class=\"n\">" });
        out.push_str(&escape(text.as_ref()));
        out.push_str(end);
    }
    out.push_str("</tr>");
}

/// Returns round ratios from `low` to `high` for an axis, about as many as `wanted`, each with its text in per cent.
pub fn percent_ticks(low: f64, high: f64, wanted: usize) -> Vec<(f64, String)> {
    let span = 100.0 * (high - low);
    if !span.is_finite() || span <= 0.0 || wanted == 0 {
        return Vec::new();
    }
    let least = span / wanted as f64;
    let power = 10_f64.powf(least.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|round| round * power).into_iter().find(|step| *step >= least * (1.0 - 1e-9));
    let step = step.unwrap_or(10.0 * power);
    // A tick at an end of the axis is not lost by rounding.
    let (first, last) = ((100.0 * low / step - 1e-6).ceil() as i64, (100.0 * high / step + 1e-6).floor() as i64);
    let decimals = usize::try_from(-(step.log10() + 1e-9).floor() as i64).unwrap_or(0);
    let tick = |number: i64| {
        let percent = number as f64 * step;
        (percent / 100.0, format!("{percent:.decimals$} %"))
    };
    (first..=last).map(tick).collect()
}

/// Returns the text for an element or an attribute: markup becomes text, and what reorders text or is not visible becomes an
/// escape such as `\u202e`. Else a name could reverse the figures beside it.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in visible_text::escape_line(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// Returns the same of a sentence, in which text between backticks is code.
pub fn prose(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, (code, after))) =
        rest.split_once('`').and_then(|(before, after)| Some((before, after.split_once('`')?)))
    {
        out.extend([&escape(before), "<code>", &escape(code), "</code>"]);
        rest = after;
    }
    out + &escape(rest)
}

#[cfg(test)]
mod tests {
    use eadt_testing::cases;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(cases(1_000))]
        #[test]
        fn nothing_in_a_page_reorders_or_hides_text(
            name in r"[\p{Cc}\p{Cf}\p{Bidi_Control}\u{200b}\u{e0041}a<]{1,9}",
        ) {
            let page = [begin(&name, &name, ""), table(&name, &[&name], 1, [[name.clone()]]), prose(&name)].concat();
            let steers = |character: char| character != '\n' && visible_text::steers(character);
            prop_assert!(!page.chars().any(steers), "{:?}", name);
        }
    }

    #[test]
    fn a_total_is_printed_once_and_not_at_the_foot_of_each_page() {
        let file = begin("a", "a", "");
        let (_, print) = file.split_once("@media print").unwrap();
        assert!(print.contains("tfoot { display: table-row-group; }"), "{print}");
    }

    #[test]
    fn a_name_does_not_turn_the_figures_beside_it() {
        assert_eq!(escape("eadt/job\u{202e}: 1.6 %"), "eadt/job\\u202e: 1.6 %");
    }

    #[test]
    fn text_between_backticks_is_code() {
        for (text, html) in [
            ("`eadt <x>` does", "<code>eadt &lt;x&gt;</code> does"),
            ("a `b` & `c`", "a <code>b</code> &amp; <code>c</code>"),
            ("one ` alone <b>", "one ` alone &lt;b&gt;"),
            ("", ""),
        ] {
            assert_eq!(prose(text), html);
        }
    }

    #[test]
    fn what_is_foreign_is_text_everywhere() {
        let hostile = "<script>alert('1')</script> & \"\u{1b}[2J\"";
        let escaped = "&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt; &amp; &quot;\\u001b[2J&quot;";
        assert_eq!(escape(hostile), escaped);
        let file = [begin(hostile, hostile, ""), table(hostile, &[hostile], 1, [[hostile.to_owned()]])].concat();
        assert_eq!(file.matches(escaped).count(), 5);
        assert!(!file.contains("<script") && !file.contains('\u{1b}'), "{file}");
    }

    #[test]
    fn ticks_are_round_and_cover_the_axis() {
        for (low, high, wanted, texts) in [
            (-0.1, 0.02, 6, "-10 % -8 % -6 % -4 % -2 % 0 % 2 %"),
            (-0.1, 0.021, 6, "-10 % -5 % 0 %"),
            (-0.021, 0.092, 4, "0 % 5 %"),
            (0.0, 0.4, 4, "0 % 10 % 20 % 30 % 40 %"),
            (0.981, 1.003, 4, "99 % 100 %"),
            (0.991, 1.003, 3, "99.5 % 100.0 %"),
            (0.5, 2.0, 3, "50 % 100 % 150 % 200 %"),
            (0.0, 0.0, 4, ""),
            (0.0, f64::NAN, 4, ""),
        ] {
            let ticks = percent_ticks(low, high, wanted);
            let shown: Vec<&str> = ticks.iter().map(|(_, text)| text.as_str()).collect();
            assert_eq!(shown.join(" "), texts, "{low} to {high}");
            assert!(ticks.iter().all(|(value, _)| (low - 1e-9..=high + 1e-9).contains(value)), "{ticks:?}");
        }
    }

    #[test]
    fn a_total_is_the_foot_of_its_table() {
        let rows = [["a".to_owned(), "3".to_owned()], ["b".to_owned(), "4".to_owned()]];
        let total = ["total".to_owned(), "7".to_owned()];
        let with = table_with_total("figures", &["name", "watts"], 1, &rows, Some(&total));
        assert!(with.contains("</tbody>\n<tfoot><tr><td>total</td><td class=\"n\">7</td></tr></tfoot>\n</table>"), "{with}");
        assert!(!table("figures", &["name", "watts"], 1, &rows).contains("<tfoot"));
    }

    /// A long name makes no page wider, and on paper no row is cut and no heading is alone at the end of a page.
    #[test]
    fn the_style_breaks_long_names_and_keeps_rows_and_headings_together() {
        let file = begin("Title", "Heading", "");
        for rule in [
            "h1, h2, h3, p, li { overflow-wrap: anywhere; }",
            "size: A4 landscape",
            "section, svg, tr { break-inside: avoid-page; }",
            "h1, h2, h3, .verdict, summary { break-after: avoid-page; }",
        ] {
            assert!(file.contains(rule), "{rule}");
        }
    }

    #[test]
    fn a_file_is_whole_and_asks_nobody() {
        let figures = table("figures", &["name", "watts"], 1, [["a".to_owned(), "3".to_owned()]]);
        let file = [&begin("Title", "Heading", ".own { fill: red; }\n"), &figures, END].concat();
        assert!(file.contains("default-src 'none'") && file.contains("<td>a</td><td class=\"n\">3</td>"), "{file}");
        assert!(!file.contains("http://") && !file.contains("https://") && !file.contains("url("), "{file}");
        for element in ["html", "head", "body", "main", "style", "table", "div", "thead"] {
            let (opened, closed) = (file.matches(&format!("<{element}")).count(), file.matches(&format!("</{element}>")).count());
            assert!(opened > 0 && opened == closed, "{element}: {opened} and {closed}");
        }
    }
}
