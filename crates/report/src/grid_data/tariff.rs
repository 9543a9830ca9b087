//! Prices of electricity: rates of `OpenEI` (JSON), a table by hour, or a time series (CSV).

use eadt_models::energy::{OpenEi, Price, Tariff};
use jiff::tz::TimeZone;

use super::table::{GridDataTable, describe_source, list_first, prefer, read_steps};
use super::unit::{ColumnUnit, UnitKind, read_unit};
use super::{GridDataError, PriceKind, Prices};

/// Prices without a unit above this many are more often of a `MWh`: in currencies of the worth of a euro, and in lesser ones.
const MANY_PER_KWH: f64 = 2.0;
const MANY_CROWNS_PER_KWH: f64 = 20.0;
const MANY_YEN_PER_KWH: f64 = 200.0;

/// Prices without a unit above this many are more often of a `MWh`.
fn many_per_kwh(currency: Option<&str>) -> f64 {
    match currency {
        Some("JPY" | "INR" | "HUF" | "RUB" | "THB" | "PHP") => MANY_YEN_PER_KWH,
        Some("SEK" | "NOK" | "DKK" | "PLN" | "CNY" | "CZK" | "TRY" | "UAH") => MANY_CROWNS_PER_KWH,
        _ => MANY_PER_KWH,
    }
}

/// Reads prices. JSON is a rate document of `OpenEI`. CSV with a column `hour` (0 to 23) and none of dates is a tariff by hour,
/// with `days` (`weekday`, `weekend` or `all`) and `month` (1 to 12) where it has them; any other CSV is a time series with a
/// column of times, or of dates and hours. A price is per kWh, or in the unit that its column's name has (`EUR/MWh`, `ct/kWh`).
/// Hours, and times without a zone, are of `zone`, else of UTC, which the notes then state. `column` names the column of the prices.
/// `time_format` is the strptime pattern of a column of times or dates, if it reads all of them.
pub fn read_prices(
    text: &str,
    column: Option<&str>,
    zone: Option<&TimeZone>,
    time_format: Option<&str>,
    source: &str,
) -> Result<Prices, GridDataError> {
    let tariff_zone = || zone.cloned().unwrap_or(TimeZone::UTC);
    if text.trim_start_matches('\u{feff}').trim_start().starts_with('{') {
        if column.is_some() {
            return Err(GridDataError::new("a rate document of OpenEI has no columns", "leave --price-column out"));
        }
        let document: OpenEi = serde_json::from_str(text).map_err(|error| {
            GridDataError::new(format!("it is no OpenEI rate document: {error}"), "give the answer of OpenEI's utility_rates")
        })?;
        let tariff = Tariff::from_open_ei(&document)
            .map_err(|error| GridDataError::new(error.to_string(), "give another rate, or its prices as CSV by hour"))?;
        let source = describe_source(source, "hours", zone.is_none());
        return Ok(Prices { kind: PriceKind::Tariff(tariff, tariff_zone()), currency: Some("USD".to_owned()), source });
    }
    let table = GridDataTable::read(text, time_format)?;
    let value = match column {
        Some(name) => table.named_column(name, "--price-column")?,
        None => price_column(&table)?,
    };
    let name = table.name_with_unit(value, UnitKind::Money)?;
    let unit = read_unit(&name, UnitKind::Money)?;
    let scale = unit.per_kwh();
    let mut numbers: Vec<f64> =
        table.rows.iter().filter_map(|(line, cells)| table.parse_number(*line, &cells[value]).ok().flatten()).collect();
    numbers.sort_by(f64::total_cmp);
    let highest = numbers.last().copied().unwrap_or(0.0).max(0.0);
    let currency = currency_of(unit, &name);
    // Single hours of a market may be dear; half of them are not.
    let middle = numbers.get(numbers.len() / 2).copied().unwrap_or(0.0);
    let is_of_market = unit.energy_kwh.is_some_and(|kwh| kwh > 1.0);
    let typical = scale * if is_of_market { middle } else { highest };
    let description = match unit.energy_kwh {
        _ if typical <= many_per_kwh(currency.as_deref()) => source.to_owned(),
        None => format!(
            "{source}, taken per kWh, up to {highest}: the column has no unit, name it such as EUR/MWh if that is what it is"
        ),
        Some(_) => {
            let most = (1e6 * scale * highest).round() / 1e6;
            format!("{source}, up to {most} per kWh: that is much, check the unit of column {:?}", table.header[value])
        }
    };
    let hour = table.hour_column().filter(|_| !table.has_dates());
    let (kind, what, is_zone_assumed) = if let Some(hour) = hour {
        (PriceKind::Tariff(by_hour(&table, hour, value, scale)?, tariff_zone()), "hours", zone.is_none())
    } else {
        let (steps, is_zone_assumed) = read_steps(&table, value, scale, zone)?;
        (PriceKind::Series(steps), "times", is_zone_assumed)
    };
    Ok(Prices { kind, currency, source: describe_source(&description, what, is_zone_assumed) })
}

/// Returns the currency of a unit, else the one that the name of its column has, as a code.
fn currency_of(unit: ColumnUnit, name: &str) -> Option<String> {
    let lower = name.to_lowercase();
    let named = ["eur", "usd", "gbp", "chf", "sek", "nok", "dkk", "pln", "jpy", "inr", "cny", "aud", "cad"]
        .into_iter()
        .find(|code| lower.split(|c: char| !c.is_ascii_alphabetic()).any(|word| word == *code))
        .or(name.contains('€').then_some("eur"));
    unit.currency.or(named).map(str::to_uppercase)
}

/// Returns whether a column's name, in lower case, is one of prices.
fn is_price(name: &str) -> bool {
    let others = ["currency", "co2", "co₂", "carbon", "emission", "intensity", "moer"];
    if others.iter().any(|word| name.contains(word)) {
        return false;
    }
    let is_worded = ["price", "tariff", "/mwh", "/kwh", "cost"].iter().any(|word| name.contains(word));
    let has_unit = |kind| read_unit(name, kind).is_ok_and(ColumnUnit::is_whole);
    let is_marginal = words(name).any(|word| ["lmp", "lbmp"].contains(&word));
    has_unit(UnitKind::Money) || !has_unit(UnitKind::Mass) && (is_worded || is_marginal || name.starts_with("rate"))
}

fn words(name: &str) -> impl Iterator<Item = &str> {
    name.split(|c: char| !c.is_alphanumeric())
}

/// Names of whole prices, and of the parts that they are of.
const TOTALS: [&str; 3] = ["lmp", "lbmp", "total"];
const PARTS: [&str; 4] = ["energy", "congestion", "loss", "losses"];

/// Leaves out columns that another one goes before: parts of a price, prices without a unit, those of the intraday market.
fn prefer_by_name(columns: &mut Vec<usize>, header: &[String]) {
    let lower = |index: usize| header[index].to_lowercase();
    let has_word = |index: usize, list: &[&str]| words(&lower(index)).any(|word| list.contains(&word));
    // `day-ahead`, `Day Ahead` and `day_ahead`.
    let letters = |index: usize| lower(index).chars().filter(|c| c.is_alphanumeric()).collect::<String>();
    if columns.iter().any(|index| has_word(*index, &TOTALS)) {
        prefer(columns, |index| has_word(index, &TOTALS) || !has_word(index, &PARTS));
    }
    prefer(columns, |index| read_unit(&header[index], UnitKind::Money).is_ok_and(ColumnUnit::is_whole));
    if columns.iter().any(|index| letters(*index).contains("dayahead")) {
        prefer(columns, |index| !letters(index).contains("intraday"));
    }
}

/// Returns the column of the prices. Of several the one that is called just `price`, or `price_per_kwh`; a whole price goes
/// before its parts, one with a unit before one without, day-ahead before intraday. One price in two units is one.
fn price_column(table: &GridDataTable) -> Result<usize, GridDataError> {
    let named: Vec<usize> = (0..table.header.len()).filter(|index| is_price(&table.header[*index].to_lowercase())).collect();
    let Some(first) = named.first().copied() else {
        let problem = format!("no column looks like a price (there are: {})", table.names());
        let remedy = "name it with --price-column, or in the header price_per_kwh or with its unit, such as EUR/MWh";
        return Err(GridDataError::new(problem, remedy));
    };
    let mut found: Vec<usize> = named.iter().copied().filter(|index| table.holds_numbers(*index)).collect();
    let is_exact = |index: &usize| {
        let name = table.header[*index].to_lowercase();
        name.split(['[', '(']).next().is_some_and(|name| ["price", "price_per_kwh"].contains(&name.trim()))
    };
    let exact: Vec<usize> = found.iter().copied().filter(is_exact).collect();
    if exact.len() == 1 {
        found = exact;
    }
    prefer_by_name(&mut found, &table.header);
    if found.len() > 1 && !table.is_one_series(&found, UnitKind::Money) {
        let names = list_first(found.iter().map(|index| table.header[*index].as_str()));
        let problem = format!("{} columns may be the price ({names})", found.len());
        return Err(GridDataError::new(problem, "name one of them with --price-column"));
    }
    Ok(found.first().copied().unwrap_or(first))
}

fn by_hour(table: &GridDataTable, hour: usize, value: usize, scale: f64) -> Result<Tariff, GridDataError> {
    let days = table.column(|name| ["days", "day", "day_type"].contains(&name));
    let month = table.column(|name| name == "month");
    let mut prices: Vec<Price> = Vec::new();
    let mut schedule = [vec![vec![None; 24]; 12], vec![vec![None; 24]; 12]];
    for (line, cells) in &table.rows {
        let whole = |index: usize, low: usize, high: usize| {
            let number = cells[index].parse::<usize>().ok().filter(|number| (low..=high).contains(number));
            let problem = format!("column {:?}: {:?} is not {low} to {high}", table.header[index], cells[index]);
            number.ok_or_else(|| GridDataError::new(problem, "correct the cell").at_line(*line))
        };
        let hour = whole(hour, 0, 23)?;
        let months = match month {
            Some(index) => {
                let month = whole(index, 1, 12)? - 1;
                month..month + 1
            }
            None => 0..12,
        };
        let kinds: &[usize] = match days.map(|index| cells[index].to_lowercase()).as_deref() {
            None | Some("all" | "") => &[0, 1],
            Some("weekday" | "weekdays") => &[0],
            Some("weekend" | "weekends") => &[1],
            Some(other) => {
                let problem = format!("{other:?} is no kind of days");
                return Err(GridDataError::new(problem, "write weekday, weekend or all").at_line(*line));
            }
        };
        let Some(price) = table.parse_number(*line, &cells[value])? else {
            return Err(GridDataError::new("there is no price", "fill it in").at_line(*line));
        };
        prices.push(Price { per_kwh: price * scale });
        for kind in kinds {
            for month in months.clone() {
                if schedule[*kind][month][hour].replace(prices.len() - 1).is_some() {
                    let problem = format!("hour {hour} of month {} has a price already", month + 1);
                    return Err(GridDataError::new(problem, "give one price an hour, kind of days and month").at_line(*line));
                }
            }
        }
    }
    let mut whole: Vec<Vec<Vec<usize>>> = Vec::new();
    for (kind, months) in ["weekdays", "weekends"].into_iter().zip(schedule) {
        let mut known = Vec::new();
        for (month, hours) in months.into_iter().enumerate() {
            let missing = hours.iter().position(Option::is_none);
            if let Some(hour) = missing {
                let problem = format!("hour {hour} of {kind} in month {} has no price", month + 1);
                return Err(GridDataError::new(problem, "give a row for every hour from 0 to 23"));
            }
            known.push(hours.into_iter().flatten().collect());
        }
        whole.push(known);
    }
    Tariff::new(prices, &whole[0], &whole[1]).map_err(|error| GridDataError::new(error.to_string(), "correct the table"))
}

#[cfg(test)]
mod tests {
    use eadt_models::energy::{EnergyInterval, JOULES_PER_KWH};

    use super::*;

    fn interval(from: &str, to: &str) -> EnergyInterval {
        EnergyInterval { from: from.parse().unwrap(), to: to.parse().unwrap(), joules: JOULES_PER_KWH }
    }

    fn cost(text: &str, zone: &TimeZone, from: &str, to: &str) -> Option<f64> {
        let prices = read_prices(text, None, Some(zone), None, "x").unwrap_or_else(|error| panic!("{error}"));
        prices.total_cost(&[interval(from, to)]).sum.map(|cost| (cost * 1e9).round() / 1e9)
    }

    fn hours(header: &str, row: impl Fn(u32) -> String) -> String {
        format!("{header}\n{}", (0..24).map(|hour| row(hour) + "\n").collect::<String>())
    }

    #[test]
    fn tariffs_by_hour_are_of_the_zone() {
        let peak = |hour: u32| if (17..21).contains(&hour) { 0.5 } else { 0.1 };
        let plain = hours("hour,price_per_kwh", |hour| format!("{hour},{}", peak(hour)));
        let (wednesday, to) = ("2026-06-10T16:00:00Z", "2026-06-10T17:00:00Z");
        assert_eq!(cost(&plain, &TimeZone::UTC, wednesday, to), Some(0.1));
        let berlin = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        assert_eq!(cost(&plain, &berlin, wednesday, to), Some(0.5), "18 to 19 o'clock in summer");
        assert_eq!(cost(&plain, &TimeZone::UTC, "2026-06-10T16:30:00Z", "2026-06-10T17:30:00Z"), Some(0.3), "half and half");
        let cents = hours("hour;days;ct/kWh", |hour| format!("{hour};weekday;{}\n{hour};weekend;5,0", 100.0 * peak(hour)));
        assert_eq!(cost(&cents, &berlin, wednesday, to), Some(0.5));
        assert_eq!(cost(&cents, &berlin, "2026-06-13T16:00:00Z", "2026-06-13T17:00:00Z"), Some(0.05), "Saturday");
        assert!(read_prices(&plain, None, None, None, "x").unwrap().currency.is_none());
    }

    #[test]
    fn series_of_prices_have_their_unit_and_currency() {
        let (from, to) = ("2026-01-01T00:30:00Z", "2026-01-01T01:30:00Z");
        for (text, expected, currency) in [
            ("datetime,price_per_kwh\n2026-01-01T00:00:00Z,0.2\n2026-01-01T01:00:00Z,0.4\n", 0.3, None),
            (
                "MTU (UTC),Day-ahead Price [EUR/MWh]\n01.01.2026 00:00 - 01.01.2026 01:00,200\n01.01.2026 01:00 - 01.01.2026 02:00,400\n",
                0.3,
                Some("EUR"),
            ),
            (
                "Datetime (UTC),Country,Price (EUR/MWhe)\n2026-01-01 00:00:00,Germany,-50\n2026-01-01 01:00:00,Germany,50\n",
                0.0,
                Some("EUR"),
            ),
            ("timestamp;Price USD/MWh\n2026-01-01T00:00:00Z;30,5\n2026-01-01T01:00:00Z;29,5\n", 0.03, Some("USD")),
            (
                "start_timestamp,end_timestamp,marketprice,unit\n1767225600000,1767229200000,200,Eur/MWh\n1767229200000,1767232800000,400,Eur/MWh\n",
                0.3,
                Some("EUR"),
            ),
            ("start,GBP p/kWh\n2026-01-01T00:00:00Z,20\n2026-01-01T01:00:00Z,40\n", 0.3, Some("GBP")),
        ] {
            assert_eq!(cost(text, &TimeZone::UTC, from, to), Some(expected), "{text}");
            assert_eq!(read_prices(text, None, None, None, "x").unwrap().currency.as_deref(), currency, "{text}");
        }
        let unnamed = "datetime,price\n2026-01-01T00:00:00Z,200\n2026-01-01T01:00:00Z,400\n";
        let note = read_prices(unnamed, None, None, None, "x").unwrap().total_cost(&[interval(from, to)]).note;
        assert!(note.contains("taken per kWh, up to 400: the column has no unit"), "{note}");
        let yen = "datetime,price JPY\n2026-01-01T00:00:00Z,30\n2026-01-01T01:00:00Z,40\n";
        let note = read_prices(yen, None, None, None, "x").unwrap().total_cost(&[interval(from, to)]).note;
        assert!(!note.contains("taken per kWh"), "{note}");
        let grade = "datetime,price,unit\n2026-01-01T00:00:00Z,0.2,A\n2026-01-01T01:00:00Z,0.4,B\n";
        assert_eq!(cost(grade, &TimeZone::UTC, from, to), Some(0.3), "a column named unit that holds none");
        let short = "datetime,EUR/MWh\n2026-01-01T00:00:00Z,200\n";
        assert_eq!(cost(short, &TimeZone::UTC, from, to), None, "half of it has no price");
    }

    #[test]
    fn prices_are_of_the_unit_of_the_header() {
        let (from, to) = ("2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z");
        for (header, value, currency) in [
            ("GBP/kWh", 0.25, Some("GBP")),
            ("Price Central [EUR/kWh]", 0.25, Some("EUR")),
            ("product_price_eur_kwh", 0.25, Some("EUR")),
            ("c/kWh", 25.0, None),
            ("öre/kWh", 25.0, Some("SEK")),
            ("Rp/kWh", 25.0, Some("CHF")),
            ("EUR/GWh", 250_000.0, Some("EUR")),
            ("EUR/MWh", 250.0, Some("EUR")),
            ("price_per_kwh", 0.25, None),
        ] {
            let text = format!("datetime,{header}\n2026-01-01T00:00:00Z,{value}\n");
            assert_eq!(cost(&text, &TimeZone::UTC, from, to), Some(0.25), "{header}");
            assert_eq!(read_prices(&text, None, None, None, "x").unwrap().currency.as_deref(), currency, "{header}");
        }
        let with_unit = "datetime,price_per_kwh,unit\n2026-01-01T00:00:00Z,25,ct/kWh\n";
        assert_eq!(cost(with_unit, &TimeZone::UTC, from, to), Some(0.25), "the column unit completes the name");
        for (text, is_noted) in [
            ("datetime,price_per_kwh\n2026-01-01T00:00:00Z,25\n", true),
            ("datetime,EUR/kWh\n2026-01-01T00:00:00Z,25\n", true),
            ("datetime,EUR/MWh\n2026-01-01T00:00:00Z,25\n2026-01-01T01:00:00Z,20\n2026-01-01T02:00:00Z,3000\n", false),
            ("datetime,ct/kWh\n2026-01-01T00:00:00Z,25\n", false),
        ] {
            let note = read_prices(text, None, None, None, "x").unwrap().total_cost(&[interval(from, to)]).note;
            assert_eq!(note.contains("check the unit of column"), is_noted, "{note}");
        }
    }

    #[test]
    fn a_date_beside_the_hour_is_no_tariff_for_all_days() {
        let text = hours("Date,Hour,Price", |hour| format!("2026-01-01,{hour},{}", 0.1 + f64::from(hour) / 100.0));
        let noon = |day: u32| (format!("2026-01-0{day}T12:00:00Z"), format!("2026-01-0{day}T13:00:00Z"));
        let (from, to) = noon(1);
        assert_eq!(cost(&text, &TimeZone::UTC, &from, &to), Some(0.22));
        let (from, to) = noon(2);
        assert_eq!(cost(&text, &TimeZone::UTC, &from, &to), None, "another day");
    }

    #[test]
    fn a_time_that_is_not_of_the_rows_leaves_a_tariff() {
        let (from, to) = ("2026-06-10T16:00:00Z", "2026-06-10T17:00:00Z");
        for header in ["hour,price,downloaded", "hour,price,update date", "hour,price,timestamp"] {
            let text = hours(header, |hour| format!("{hour},0.{hour},2025-05-01 12:34"));
            assert_eq!(cost(&text, &TimeZone::UTC, from, to), Some(0.16), "{header}");
        }
        let broken = hours("hour,price,date", |hour| format!("{hour},0.1,{}", if hour < 5 { "2026-06-10" } else { "x" }));
        assert!(read_prices(&broken, None, None, None, "x").unwrap_err().to_string().contains("\"x\" is no date"));
    }

    #[test]
    fn several_columns_of_prices_are_named() {
        let rows = "2026-01-01T00:00:00Z,0.1,0.2\n";
        for (columns, part) in [
            ("Price DE,Price FR", "2 columns may be the price (Price DE, Price FR); name one of them with --price-column"),
            ("Forecast EUR/kWh,Actual EUR/kWh", "(Forecast EUR/kWh, Actual EUR/kWh)"),
            ("Gas Price,Electricity Price", "(Gas Price, Electricity Price)"),
            ("DE EUR/MWh,FR EUR/MWh", "(DE EUR/MWh, FR EUR/MWh)"),
            ("Sell EUR/kWh,Buy EUR/kWh", "(Sell EUR/kWh, Buy EUR/kWh)"),
            ("price_exc_vat,price_inc_vat", "(price_exc_vat, price_inc_vat)"),
            ("Price EUR/kWh,Other EUR/MWh", "(Price EUR/kWh, Other EUR/MWh)"),
            ("Total price DE,Price FR", "(Total price DE, Price FR)"),
        ] {
            let message = read_prices(&format!("datetime,{columns}\n{rows}"), None, None, None, "x").unwrap_err().to_string();
            assert!(message.contains(part), "{columns}: {message}");
        }
        for (text, expected) in [
            (format!("datetime,Price,Price forecast\n{rows}"), 0.1),
            (format!("datetime,Price forecast,Price [EUR/kWh]\n{rows}"), 0.2),
            (format!("datetime,Price A,Spot [EUR/kWh]\n{rows}"), 0.2),
            (format!("datetime,Energy price,LMP\n{rows}"), 0.2),
            (format!("datetime,Total price,Congestion price\n{rows}"), 0.1),
            ("datetime,LBMP ($/MWHr),Marginal Cost Losses ($/MWHr)\n2026-01-01T00:00:00Z,300,5\n".to_owned(), 0.3),
            (format!("datetime,Intraday price,Day-ahead price\n{rows}"), 0.2),
            ("datetime,Spot EUR/kWh,Spot EUR/MWh\n2026-01-01T00:00:00Z,0.3,300\n".to_owned(), 0.3),
            ("datetime,price,unit\n2026-01-01T00:00:00Z,0.3,C$/kWh\n".to_owned(), 0.3),
            ("datetime,price area,spot price\n2026-01-01T00:00:00Z,DE,0.3\n".to_owned(), 0.3),
        ] {
            let found = cost(&text, &TimeZone::UTC, "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z");
            assert_eq!(found, Some(expected), "{text}");
        }
    }

    #[test]
    fn a_column_that_is_named_goes_before_its_name() {
        let rows = "2026-01-01T00:00:00Z,0.1,0.2\n";
        let (from, to) = ("2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z");
        for (columns, named, expected) in [
            ("Price DE,Price FR", "Price FR", 0.2),
            ("Price DE,Price FR", "price de", 0.1),
            ("price,Price", "Price", 0.2),
            ("price,area factor", "area factor", 0.2),
            ("Import [ct/kWh],Export [ct/kWh]", "Export [ct/kWh]", 0.002),
        ] {
            let text = format!("datetime,{columns}\n{rows}");
            let prices = read_prices(&text, Some(named), None, None, "x").unwrap();
            let sum = prices.total_cost(&[interval(from, to)]).sum.unwrap();
            assert!((sum - expected).abs() < 1e-9, "{columns}: {named}: {sum}");
        }
        for (text, named, part) in [
            (format!("datetime,Price DE,Price FR\n{rows}"), "Price", "there is no column \"Price\""),
            (format!("datetime,PRICE,Price\n{rows}"), "price", "2 columns are called \"price\""),
            ("{\"items\": []}".to_owned(), "rate", "leave --price-column out"),
        ] {
            let message = read_prices(&text, Some(named), None, None, "x").unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn hours_without_a_zone_are_of_utc_with_a_note() {
        let plain = hours("hour,price_per_kwh", |hour| format!("{hour},0.1"));
        let note = |text: &str, zone: Option<&TimeZone>| {
            let prices = read_prices(text, None, zone, None, "x").unwrap();
            prices.total_cost(&[interval("2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z")]).note
        };
        assert!(note(&plain, None).contains("hours read as UTC for want of a --time-zone"), "{}", note(&plain, None));
        assert!(!note(&plain, Some(&TimeZone::UTC)).contains("--time-zone"));
    }

    #[test]
    fn what_is_no_tariff_is_named() {
        let refused = |text: &str| read_prices(text, None, None, None, "x").unwrap_err().to_string();
        for (text, part) in [
            (String::new(), "the file is empty"),
            ("{}".to_owned(), "no OpenEI rate document"),
            ("{\"items\": []}".to_owned(), "has no tariff"),
            ("datetime,x\n2026-01-01T00:00:00Z,1\n".to_owned(), "no column looks like a price"),
            ("hour,price\n0,1\n".to_owned(), "hour 1 of weekdays in month 1 has no price"),
            ("hour,price\n24,1\n".to_owned(), "line 2: column \"hour\": \"24\" is not 0 to 23"),
            ("hour,price\n1,1\n1,2\n".to_owned(), "line 3: hour 1 of month 1 has a price already"),
            ("hour,price\n0,1\n1,1.7e308\n".to_owned(), "line 3: \"1.7e308\" is beyond ±1e15"),
            ("datetime,price\n2026-01-01T00:00:00Z,-1e16\n".to_owned(), "line 2: \"-1e16\" is beyond ±1e15"),
            ("hour,days,price\n1,sunday,1\n".to_owned(), "\"sunday\" is no kind of days"),
            (hours("hour,days,price", |hour| format!("{hour},weekday,1")), "hour 0 of weekends in month 1 has no price"),
        ] {
            let message = refused(&text);
            assert!(message.contains(part), "{text:?}: {message}");
        }
    }
}
