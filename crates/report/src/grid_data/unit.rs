//! Units in the names of columns: money or mass, per energy.

use super::GridDataError;

/// Quantity that the values of a column count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UnitKind {
    /// Whole units of a currency.
    Money,
    /// Grams.
    Mass,
}

/// The unit that a column's name has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ColumnUnit {
    /// Whole units of the currency, or grams, that it is; `None` if the name has no unit of the kind.
    pub(super) amount: Option<f64>,
    /// The energy that it is per, in kWh; `None` if the name has none.
    pub(super) energy_kwh: Option<f64>,
    pub(super) currency: Option<&'static str>,
}

impl ColumnUnit {
    /// Returns whether both parts are known: of what, and per which energy.
    pub(super) fn is_whole(self) -> bool {
        self.amount.is_some() && self.energy_kwh.is_some()
    }

    /// Returns whole units of the currency, or grams, per kWh of a value of 1.
    pub(super) fn per_kwh(self) -> f64 {
        self.amount.unwrap_or(1.0) / self.energy_kwh.unwrap_or(1.0)
    }
}

/// Units of energy, in kWh.
const ENERGIES: &[(&str, f64)] = &[
    ("wh", 1e-3),
    ("kwh", 1.0),
    ("kwhs", 1.0),
    ("kwhe", 1.0),
    ("kwhel", 1.0),
    ("kwhr", 1.0),
    ("kwhrs", 1.0),
    ("kilowatthour", 1.0),
    ("kilowatthours", 1.0),
    ("mwh", 1e3),
    ("mwhs", 1e3),
    ("mwhe", 1e3),
    ("mwhel", 1e3),
    ("mwhr", 1e3),
    ("mwhrs", 1e3),
    ("megawatthour", 1e3),
    ("megawatthours", 1e3),
    ("gwh", 1e6),
    ("gigawatthour", 1e6),
    ("gigawatthours", 1e6),
    ("twh", 1e9),
    ("j", 1.0 / 3.6e6),
    ("kj", 1.0 / 3600.0),
    ("mj", 1.0 / 3.6),
    ("megajoule", 1.0 / 3.6),
    ("megajoules", 1.0 / 3.6),
    ("gj", 1e3 / 3.6),
    ("gigajoule", 1e3 / 3.6),
    ("gigajoules", 1e3 / 3.6),
];

/// Units of power, of which an hour makes one of energy.
const POWERS: &[&str] = &["kw", "mw", "gw"];

/// Units of energy that may end a word.
const JOINED_ENERGIES: &[&str] = &["kwh", "mwh", "gwh", "twh"];

/// Currencies by other names than their codes, and their parts; in whole units, and the code if there is one only.
const MONEY: &[(&str, f64, Option<&str>)] = &[
    ("c", 0.01, None),
    ("ct", 0.01, None),
    ("cts", 0.01, None),
    ("cent", 0.01, None),
    ("cents", 0.01, None),
    ("¢", 0.01, None),
    ("eurocent", 0.01, Some("EUR")),
    ("eurocents", 0.01, Some("EUR")),
    ("eurct", 0.01, Some("EUR")),
    ("eurc", 0.01, Some("EUR")),
    ("snt", 0.01, Some("EUR")),
    ("sentti", 0.01, Some("EUR")),
    ("senttiä", 0.01, Some("EUR")),
    ("usc", 0.01, Some("USD")),
    ("p", 0.01, Some("GBP")),
    ("pence", 0.01, Some("GBP")),
    ("penny", 0.01, Some("GBP")),
    ("pennies", 0.01, Some("GBP")),
    ("öre", 0.01, Some("SEK")),
    ("øre", 0.01, None),
    ("ore", 0.01, None),
    ("rp", 0.01, Some("CHF")),
    ("rappen", 0.01, Some("CHF")),
    ("fen", 0.01, Some("CNY")),
    ("paisa", 0.01, Some("INR")),
    ("paise", 0.01, Some("INR")),
    ("grosz", 0.01, Some("PLN")),
    ("grosze", 0.01, Some("PLN")),
    ("groszy", 0.01, Some("PLN")),
    ("mill", 0.001, None),
    ("mills", 0.001, None),
    ("euro", 1.0, Some("EUR")),
    ("euros", 1.0, Some("EUR")),
    ("€", 1.0, Some("EUR")),
    ("£", 1.0, Some("GBP")),
    ("pound", 1.0, Some("GBP")),
    ("pounds", 1.0, Some("GBP")),
    ("$", 1.0, None),
    ("dollar", 1.0, None),
    ("dollars", 1.0, None),
    ("¥", 1.0, None),
    ("yen", 1.0, Some("JPY")),
    ("yuan", 1.0, Some("CNY")),
    ("rmb", 1.0, Some("CNY")),
    ("₹", 1.0, Some("INR")),
    ("rupee", 1.0, Some("INR")),
    ("rupees", 1.0, Some("INR")),
    ("kr", 1.0, None),
    ("rs", 1.0, None),
    ("tl", 1.0, Some("TRY")),
    ("円", 1.0, Some("JPY")),
    ("元", 1.0, Some("CNY")),
    ("원", 1.0, Some("KRW")),
    ("won", 1.0, Some("KRW")),
    ("zł", 1.0, Some("PLN")),
    ("kč", 1.0, Some("CZK")),
    ("ft", 1.0, Some("HUF")),
    ("лв", 1.0, Some("BGN")),
    ("lei", 1.0, Some("RON")),
    ("a$", 1.0, Some("AUD")),
    ("au$", 1.0, Some("AUD")),
    ("c$", 1.0, Some("CAD")),
    ("ca$", 1.0, Some("CAD")),
    ("hk$", 1.0, Some("HKD")),
    ("nt$", 1.0, Some("TWD")),
    ("nz$", 1.0, Some("NZD")),
    ("p$", 1.0, None),
    ("r$", 1.0, Some("BRL")),
    ("s$", 1.0, Some("SGD")),
    ("us$", 1.0, Some("USD")),
];

/// Codes of currencies.
const CURRENCIES: &[&str] = &[
    "EUR", "USD", "GBP", "CHF", "SEK", "NOK", "DKK", "PLN", "JPY", "INR", "CNY", "AUD", "CAD", "NZD", "CZK", "HUF", "RON", "BGN",
    "TRY", "UAH", "RSD", "ISK", "RUB", "GEL", "MDL", "ALL", "BAM", "MKD", "ILS", "ZAR", "BRL", "MXN", "CLP", "COP", "ARS", "PEN",
    "KRW", "TWD", "HKD", "SGD", "MYR", "THB", "PHP", "IDR", "VND", "PKR", "BDT", "LKR", "AED", "SAR", "QAR", "EGP", "MAD", "NGN",
    "KES",
];

/// Parts of currencies that a name may have without the energy that they are per.
const PLAIN_PARTS: &[&str] = &[
    "ct",
    "cts",
    "cent",
    "cents",
    "¢",
    "eurocent",
    "eurocents",
    "eurct",
    "usc",
    "snt",
    "sentti",
    "senttiä",
    "pence",
    "öre",
    "rappen",
];

/// Units of mass, in grams.
const MASSES: &[(&str, f64)] = &[
    ("mg", 1e-3),
    ("g", 1.0),
    ("gram", 1.0),
    ("grams", 1.0),
    ("gramme", 1.0),
    ("grammes", 1.0),
    ("kg", 1e3),
    ("kgs", 1e3),
    ("kilogram", 1e3),
    ("kilograms", 1e3),
    ("t", 1e6),
    ("ton", 1e6),
    ("tons", 1e6),
    ("tonne", 1e6),
    ("tonnes", 1e6),
    ("lb", 453.592_37),
    ("lbs", 453.592_37),
    ("pound", 453.592_37),
    ("pounds", 453.592_37),
];

/// Grams of a short ton.
const SHORT_TON: f64 = 907_184.74;

/// Units of mass that a name may have without the energy that they are per.
const PLAIN_MASSES: &[&str] = &["kg", "kgs", "lb", "lbs", "ton", "tons", "tonne", "tonnes", "grams"];

/// Units of mass that are none of those above; those of carbon without its oxygen, too.
const FOREIGN_MASSES: &[&str] = &["ug", "µg", "μg", "ng", "cg", "dg", "oz", "mt", "kt", "gt", "gc", "kgc", "tc", "mol"];

/// Words that may be between a unit of mass and the energy.
const SUBSTANCES: &[&str] = &[
    "co2",
    "eq",
    "eqv",
    "equiv",
    "equivalent",
    "equivalents",
    "äq",
    "aeq",
    "äquivalent",
    "éq",
    "équivalent",
    "e",
    "of",
    "carbon",
    "dioxide",
    "ghg",
    "emissions",
];
/// Suffixes that may follow `co2` in a word.
const EQUIVALENTS: &[&str] = &["", "e", "eq", "eqv", "equiv", "equivalent", "äq", "aeq", "äquivalent", "éq", "équivalent"];

/// Words before `per kWh` that are no unit.
const PLAIN_WORDS: &[&str] = &[
    "price",
    "prices",
    "preis",
    "cost",
    "costs",
    "tariff",
    "tariffs",
    "rate",
    "rates",
    "fee",
    "charge",
    "value",
    "values",
    "spot",
    "market",
    "ahead",
    "energy",
    "total",
    "average",
    "mean",
    "intensity",
    "intensities",
    "emission",
    "factor",
    "moer",
    "aoer",
    "marginal",
    "actual",
    "forecast",
    "direct",
    "lifecycle",
    "cycle",
    "lca",
    "ci",
    "electricity",
    "marketprice",
    "unitprice",
    "pris",
    "elpris",
    "hinta",
    "prijs",
    "prix",
    "precio",
    "arbeitspreis",
    "energiepreis",
    "brutto",
    "netto",
    "vat",
    "tax",
    "mwst",
    "inc",
    "incl",
    "exc",
    "excl",
    "in",
    "base",
    "peak",
];

/// Parts of words that are near a unit of money or mass.
const NEAR_UNITS: &[&str] = &[
    "cent", "cént", "ct", "sent", "öre", "øre", "penn", "grosz", "kop", "копе", "kuru", "haler", "halé", "heller", "stotin",
    "agor", "satang", "mill", "gram", "ton", "pound", "ounce", "co2",
];

#[derive(Debug, Clone, PartialEq, Eq)]
enum UnitToken {
    /// A word in lower case; `is_joined`: nothing separates it from the one before.
    Word {
        text: String,
        is_joined: bool,
    },
    Slash,
    Per,
    /// A bracket or a comma.
    Break,
}

impl UnitToken {
    fn word(&self) -> Option<&str> {
        match self {
            Self::Word { text, .. } => Some(text),
            _ => None,
        }
    }

    fn energy_kwh(&self) -> Option<f64> {
        energy_kwh(self.word()?)
    }

    fn divides(&self) -> bool {
        matches!(self, Self::Slash | Self::Per)
    }
}

/// Money or mass.
#[derive(Debug, Clone, Copy, PartialEq)]
struct UnitAmount {
    value: f64,
    currency: Option<&'static str>,
}

fn energy_kwh(word: &str) -> Option<f64> {
    ENERGIES.iter().find(|(name, _)| *name == word).map(|(_, kwh)| *kwh)
}

fn money(word: &str) -> Option<UnitAmount> {
    if let Some((_, value, currency)) = MONEY.iter().find(|(name, ..)| *name == word) {
        return Some(UnitAmount { value: *value, currency: *currency });
    }
    let code = CURRENCIES.iter().find(|code| code.eq_ignore_ascii_case(word))?;
    Some(UnitAmount { value: 1.0, currency: Some(*code) })
}

/// Returns the text before `co2` in a word: `kg` of `kgco2eq`.
fn before_co2(word: &str) -> Option<&str> {
    word.split_once("co2").filter(|(_, after)| EQUIVALENTS.contains(after)).map(|(before, _)| before)
}

fn mass(word: &str) -> Option<f64> {
    let word = before_co2(word).unwrap_or(word);
    MASSES.iter().find(|(name, _)| *name == word).map(|(_, grams)| *grams)
}

fn is_known(word: &str) -> bool {
    let is_foreign = FOREIGN_MASSES.contains(&before_co2(word).unwrap_or(word));
    energy_kwh(word).is_some() || money(word).is_some() || mass(word).is_some() || is_foreign
}

/// Splits a name into its words, in lower case, and the text between them.
fn tokens(name: &str) -> Vec<UnitToken> {
    let mut found = Vec::new();
    let mut chunk = String::new();
    let mut is_joined = false;
    for c in name.replace('₂', "2").chars() {
        if c.is_alphanumeric() {
            chunk.push(c);
            continue;
        }
        let is_after_word = is_joined || !chunk.is_empty();
        let dollar = format!("{}$", chunk.to_lowercase());
        // `C$` is a dollar of its own; `c$` may be a cent.
        if c == '$' && chunk != "c" && money(&dollar).is_some() && !chunk.is_empty() {
            found.push(UnitToken::Word { text: dollar, is_joined });
            chunk.clear();
            is_joined = true;
            continue;
        }
        push_words(&mut found, &chunk, is_joined);
        chunk.clear();
        is_joined = matches!(c, '€' | '£' | '$' | '¥' | '¢' | '₹');
        match c {
            _ if is_joined => found.push(UnitToken::Word { text: c.to_string(), is_joined: is_after_word }),
            '/' => found.push(UnitToken::Slash),
            '(' | ')' | '[' | ']' | ',' | ';' | ':' | '|' => found.push(UnitToken::Break),
            _ => {}
        }
    }
    push_words(&mut found, &chunk, is_joined);
    join_hours(found)
}

/// Adds the words of a run of letters and digits: one if it is a unit, else split at its humps and before a unit of energy.
fn push_words(found: &mut Vec<UnitToken>, chunk: &str, is_joined: bool) {
    let whole = chunk.to_lowercase();
    let is_unit =
        is_known(&whole) || POWERS.contains(&whole.as_str()) || JOINED_ENERGIES.iter().any(|unit| whole.starts_with(unit));
    let words = if is_unit { vec![whole] } else { split_per(humps(chunk).into_iter().flat_map(split_energy)) };
    for (index, text) in words.into_iter().filter(|word| !word.is_empty()).enumerate() {
        let is_joined = is_joined || index > 0;
        found.push(if text == "per" { UnitToken::Per } else { UnitToken::Word { text, is_joined } });
    }
}

/// Splits `pricePerKWh` into `price`, `per` and `kwh`.
fn humps(chunk: &str) -> Vec<String> {
    let mut pieces: Vec<String> = Vec::new();
    let mut last: Option<char> = None;
    for c in chunk.chars() {
        if last.is_none_or(|last| c.is_uppercase() && !last.is_uppercase()) {
            pieces.push(String::new());
        }
        if let Some(piece) = pieces.last_mut() {
            piece.extend(c.to_lowercase());
        }
        last = Some(c);
    }
    // The prefix of `kWh` is in the hump before.
    let mut at = 1;
    while at < pieces.len() {
        if pieces[at] == "wh"
            && pieces[at - 1].ends_with(['k', 'm', 'g'])
            && let Some(prefix) = pieces[at - 1].pop()
        {
            pieces[at].insert(0, prefix);
        }
        at += 1;
    }
    pieces
}

/// Splits `eurmwh` into `eur` and `mwh`.
fn split_energy(word: String) -> Vec<String> {
    if is_known(&word) {
        return vec![word];
    }
    let Some((rest, unit)) = JOINED_ENERGIES.iter().find_map(|unit| Some((word.strip_suffix(unit)?, *unit))) else {
        return vec![word];
    };
    vec![rest.to_owned(), unit.to_owned()]
}

/// Splits the `ctper` before a unit of energy into `ct` and `per`.
fn split_per(words: impl Iterator<Item = String>) -> Vec<String> {
    let mut split: Vec<String> = Vec::new();
    for word in words {
        let rest = split.last().and_then(|last| last.strip_suffix("per")).map(str::to_owned);
        if let Some(rest) = rest.filter(|_| energy_kwh(&word).is_some()) {
            split.pop();
            split.extend([rest, "per".to_owned()]);
        }
        split.push(word);
    }
    split
}

/// Makes `kw` and `h`, as of `kW·h`, one word, and `kilowatt` and `hours`.
fn join_hours(tokens: Vec<UnitToken>) -> Vec<UnitToken> {
    let mut joined: Vec<UnitToken> = Vec::new();
    for token in tokens {
        let is_hours = token.word().is_some_and(|word| ["h", "hr", "hour", "hours"].contains(&word));
        let unit = match joined.last().and_then(UnitToken::word) {
            Some("w" | "watt") if is_hours => "wh",
            Some("kw" | "kilowatt" | "kilowatts") if is_hours => "kwh",
            Some("mw" | "megawatt" | "megawatts") if is_hours => "mwh",
            Some("gw" | "gigawatt" | "gigawatts") if is_hours => "gwh",
            _ => {
                joined.push(token);
                continue;
            }
        };
        joined.pop();
        joined.push(UnitToken::Word { text: unit.to_owned(), is_joined: false });
    }
    joined
}

/// Returns whether a name has a unit of energy.
pub(super) fn has_energy_unit(name: &str) -> bool {
    tokens(name).iter().any(|token| token.word() != Some("j") && token.energy_kwh().is_some())
}

/// Returns the unit that a column's name has: `EUR/MWh`, `ct_per_kwh`, `g CO2 per kWh`, `price_eur_kwh`. One that is not known
/// here is refused.
pub(super) fn read_unit(name: &str, kind: UnitKind) -> Result<ColumnUnit, GridDataError> {
    let (what, remedy) = match kind {
        UnitKind::Money => ("money", "name the unit in the header, such as EUR/MWh or ct/kWh"),
        UnitKind::Mass => ("mass", "name the unit in the header, such as gCO2/kWh or lbs/MWh"),
    };
    let wrong = |problem: String| GridDataError::new(format!("column {name:?}: {problem}"), remedy);
    let tokens = tokens(name);
    let unknown = tokens
        .iter()
        .filter_map(UnitToken::word)
        .find(|word| energy_kwh(word).is_none() && JOINED_ENERGIES.iter().any(|unit| word.contains(unit)));
    if let Some(word) = unknown {
        return Err(wrong(format!("{word:?} is no unit of energy that is known here")));
    }
    let mut units: Vec<(Option<UnitAmount>, f64)> = Vec::new();
    let mut without_sign: Vec<(Option<UnitAmount>, f64)> = Vec::new();
    let mut foreign = None;
    for (at, token) in tokens.iter().enumerate() {
        let before = &tokens[..at];
        let amount = |is_divided: bool| amount_before(before, kind, is_divided);
        if token.divides() {
            let denominator = tokens[at + 1..].iter().find(|token| **token != UnitToken::Break);
            let Some(denominator) = denominator.filter(|denominator| denominator.word().is_some()) else { continue };
            if let Some(energy) = denominator.energy_kwh() {
                let amount = amount(true).map_err(|word| wrong(format!("{word:?} is no unit of {what} that is known here")))?;
                units.push((amount, energy));
            } else if *token == UnitToken::Per || amount(true).is_ok_and(|amount| amount.is_some()) {
                foreign = foreign.or(denominator.word());
            }
        } else if let Some(energy) = token.energy_kwh().filter(|_| token.word() != Some("j")) {
            let is_divided = before.iter().rfind(|token| **token != UnitToken::Break).is_some_and(UnitToken::divides);
            if !is_divided {
                let problem = |word: String| wrong(format!("{word:?} may be a unit of {what}, or not: write a / after it"));
                without_sign.push((amount(false).map_err(problem)?, energy));
            }
        }
    }
    if let Some(word) = foreign.filter(|_| units.is_empty()) {
        return Err(wrong(format!("{word:?} is no unit of energy that is known here")));
    }
    let units = if units.is_empty() { without_sign } else { units };
    let Some((_, energy)) = units.first().copied() else {
        let amount = plain_amount(&tokens, kind);
        return Ok(ColumnUnit {
            amount: amount.map(|amount| amount.value),
            energy_kwh: None,
            currency: amount.and_then(|amount| amount.currency),
        });
    };
    let amounts: Vec<UnitAmount> = units.iter().filter_map(|(amount, _)| *amount).collect();
    let amount = amounts.first().copied().or_else(|| plain_amount(&tokens, kind));
    if units.iter().any(|(_, other)| *other != energy) || amounts.iter().any(|other| other.value != amounts[0].value) {
        return Err(wrong("it has two units".to_owned()));
    }
    Ok(ColumnUnit {
        amount: amount.map(|amount| amount.value),
        energy_kwh: Some(energy),
        currency: amount.and_then(|amount| amount.currency),
    })
}

/// Returns the money or mass that these end with, if any; an error is the word that may be one and is not known. `is_divided`: a
/// `/` or `per` follows.
fn amount_before(before: &[UnitToken], kind: UnitKind, is_divided: bool) -> Result<Option<UnitAmount>, String> {
    let breaks = before.iter().rev().take_while(|token| **token == UnitToken::Break).count();
    let before = &before[..before.len() - breaks];
    // Text in brackets before the sign need not be a unit.
    let is_unit_due = is_divided && breaks == 0;
    match kind {
        UnitKind::Money => money_before(before, is_divided, is_unit_due),
        UnitKind::Mass => mass_before(before, is_unit_due),
    }
}

fn is_listed(word: &str) -> bool {
    PLAIN_WORDS.contains(&word) || word.chars().all(|c| c.is_ascii_digit())
}

/// Returns whether a word before a sign of division is no unit: a long one that is like none is some other word.
fn is_plain(word: &str) -> bool {
    let is_like_none = || !is_known(word) && !NEAR_UNITS.iter().any(|part| word.contains(part));
    is_listed(word) || word.chars().count() > 4 && is_like_none()
}

/// `Zone C` ends like `c`.
fn is_letter(word: &str) -> bool {
    ["c", "p"].contains(&word)
}

fn money_before(before: &[UnitToken], is_divided: bool, is_unit_due: bool) -> Result<Option<UnitAmount>, String> {
    let Some((UnitToken::Word { text, is_joined }, rest)) = before.split_last() else { return Ok(None) };
    let Some(mut amount) = money(text) else {
        return if is_unit_due && !is_plain(text) { Err(text.clone()) } else { Ok(None) };
    };
    if !is_divided && is_letter(text) && rest.last().and_then(UnitToken::word).is_some_and(|word| !is_listed(word)) {
        return Err(text.clone());
    }
    // `EUR ct` and `c€` are one unit.
    let mut is_next_joined = *is_joined;
    for token in rest.iter().rev() {
        let UnitToken::Word { text, is_joined } = token else { break };
        let Some(other) = money(text) else { break };
        if is_letter(text) && !is_next_joined {
            return Err(text.clone());
        }
        amount.value = amount.value.min(other.value);
        amount.currency = amount.currency.or(other.currency);
        is_next_joined = *is_joined;
    }
    Ok(Some(amount))
}

fn is_substance(word: &str) -> bool {
    SUBSTANCES.contains(&word) || before_co2(word) == Some("")
}

fn mass_before(before: &[UnitToken], is_unit_due: bool) -> Result<Option<UnitAmount>, String> {
    let substances = before.iter().rev().take_while(|token| token.word().is_some_and(is_substance)).count();
    let Some((UnitToken::Word { text, .. }, rest)) = before[..before.len() - substances].split_last() else { return Ok(None) };
    if FOREIGN_MASSES.contains(&before_co2(text).unwrap_or(text)) {
        return Err(text.clone());
    }
    let is_short = text.starts_with("ton") && rest.last().and_then(UnitToken::word) == Some("short");
    match mass(text) {
        Some(_) if is_short => Ok(Some(UnitAmount { value: SHORT_TON, currency: None })),
        Some(value) => Ok(Some(UnitAmount { value, currency: None })),
        None if is_unit_due && substances == 0 && before_co2(text).is_none() && !is_plain(text) => Err(text.clone()),
        None => Ok(None),
    }
}

/// Returns the money or mass that a name has apart from an energy: `price (ct)`, `carbon_intensity_kg`.
fn plain_amount(tokens: &[UnitToken], kind: UnitKind) -> Option<UnitAmount> {
    let of = |(at, token): (usize, &UnitToken)| {
        let text = token.word()?;
        let is_bracketed =
            at > 0 && tokens[at - 1] == UnitToken::Break && tokens.get(at + 1).is_some_and(|next| *next == UnitToken::Break);
        match kind {
            UnitKind::Money => money(text).filter(|_| is_bracketed || PLAIN_PARTS.contains(&text)),
            UnitKind::Mass => mass(text)
                .filter(|_| is_bracketed || PLAIN_MASSES.contains(&text) || before_co2(text).is_some())
                .map(|value| UnitAmount { value, currency: None }),
        }
    };
    tokens.iter().enumerate().find_map(of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_are_in_the_unit_that_their_names_have() {
        for (name, value, per_kwh, currency) in [
            ("GBP/kWh", 0.25, 0.25, Some("GBP")),
            ("GBP p/kWh", 25.0, 0.25, Some("GBP")),
            ("p/kWh", 25.0, 0.25, Some("GBP")),
            ("Price Central [EUR/kWh]", 0.25, 0.25, Some("EUR")),
            ("product_price_eur_kwh", 0.25, 0.25, Some("EUR")),
            ("c/kWh", 25.0, 0.25, None),
            ("ct/kWh", 25.0, 0.25, None),
            ("EUR ct/kWh", 25.0, 0.25, Some("EUR")),
            ("c€/kWh", 25.0, 0.25, Some("EUR")),
            ("price in cents per kWh", 25.0, 0.25, None),
            ("price_ct_per_kwh", 25.0, 0.25, None),
            ("price_c_kwh", 25.0, 0.25, None),
            ("pence_per_kwh", 25.0, 0.25, Some("GBP")),
            ("öre/kWh", 25.0, 0.25, Some("SEK")),
            ("Rp/kWh", 25.0, 0.25, Some("CHF")),
            ("Rp./kWh", 25.0, 0.25, Some("CHF")),
            ("US mills/kWh", 250.0, 0.25, None),
            ("EUR/GWh", 250_000.0, 0.25, Some("EUR")),
            ("EUR/MWh", 250.0, 0.25, Some("EUR")),
            ("Price (EUR/MWhe)", 250.0, 0.25, Some("EUR")),
            ("Deutschland/Luxemburg [€/MWh] Originalauflösungen", 250.0, 0.25, Some("EUR")),
            ("EUR per megawatt hour", 250.0, 0.25, Some("EUR")),
            ("HUF/MWh", 250.0, 0.25, Some("HUF")),
            ("EUR/MJ", 1.0, 3.6, Some("EUR")),
            ("C$/MWh", 250.0, 0.25, Some("CAD")),
            ("C$/kWh", 0.25, 0.25, Some("CAD")),
            ("P$/kWh", 0.25, 0.25, None),
            ("A$/kWh", 0.25, 0.25, Some("AUD")),
            ("Price (NZ$/MWh)", 250.0, 0.25, Some("NZD")),
            ("HK$/kWh", 0.25, 0.25, Some("HKD")),
            ("US$/MWh", 250.0, 0.25, Some("USD")),
            ("cents S$/kWh", 25.0, 0.25, Some("SGD")),
            ("c$/kWh", 25.0, 0.25, None),
            ("LBMP ($/MWHr)", 250.0, 0.25, None),
            ("EUR/kWhr", 0.25, 0.25, Some("EUR")),
            ("EURct/kWh", 25.0, 0.25, Some("EUR")),
            ("USc/kWh", 25.0, 0.25, Some("USD")),
            ("snt/kWh", 25.0, 0.25, Some("EUR")),
            ("senttiä/kWh", 25.0, 0.25, Some("EUR")),
            ("TL/MWh", 250.0, 0.25, Some("TRY")),
            ("円/kWh", 0.25, 0.25, Some("JPY")),
            ("元/kWh", 0.25, 0.25, Some("CNY")),
            ("원/kWh", 0.25, 0.25, Some("KRW")),
            ("zł/MWh", 250.0, 0.25, Some("PLN")),
            ("Kč/kWh", 0.25, 0.25, Some("CZK")),
            ("Ft/kWh", 0.25, 0.25, Some("HUF")),
            ("лв/MWh", 250.0, 0.25, Some("BGN")),
            ("lei/kWh", 0.25, 0.25, Some("RON")),
            ("Rs./kWh", 0.25, 0.25, None),
            ("EUR/kW·h", 0.25, 0.25, Some("EUR")),
            ("EUR/kW*h", 0.25, 0.25, Some("EUR")),
            ("EUR/kW-h", 0.25, 0.25, Some("EUR")),
            ("EUR/kW h", 0.25, 0.25, Some("EUR")),
            ("CTPerKWh", 25.0, 0.25, None),
            ("ctperkWh", 25.0, 0.25, None),
            ("ctperkwh", 25.0, 0.25, None),
            ("EURPerMWh", 250.0, 0.25, Some("EUR")),
            ("Elpris/kWh", 0.25, 0.25, None),
            ("Arbeitspreis/kWh", 0.25, 0.25, None),
            ("Stromkosten/kWh", 0.25, 0.25, None),
            ("Price incl. VAT/kWh", 0.25, 0.25, None),
            ("price_per_kwh", 0.25, 0.25, None),
            ("pricePerKWh", 0.25, 0.25, None),
            ("pricePerkWh", 0.25, 0.25, None),
            ("priceEURkWh", 0.25, 0.25, Some("EUR")),
            ("eurmwh", 250.0, 0.25, Some("EUR")),
            ("Price (per MWh)", 250.0, 0.25, None),
            ("Price ct (per kWh)", 25.0, 0.25, None),
            ("price (ct)", 25.0, 0.25, None),
            ("price", 0.25, 0.25, None),
            ("Percentile price", 0.25, 0.25, None),
        ] {
            let unit = read_unit(name, UnitKind::Money).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!((value * unit.per_kwh() - per_kwh).abs() < 1e-9, "{name}: {unit:?}");
            assert_eq!(unit.currency, currency, "{name}");
        }
    }

    #[test]
    fn intensities_are_in_the_unit_that_their_names_have() {
        for (name, value, grams) in [
            ("Alberta gCO2/kWh", 360.0, 360.0),
            ("Melbourne gCO2/kWh", 360.0, 360.0),
            ("Melbourne CO2 kg/MWh", 360.0, 360.0),
            ("Direct CO2 g/kWh", 360.0, 360.0),
            ("gCO2/MJ", 100.0, 360.0),
            ("kg CO2e/GJ", 100.0, 360.0),
            ("gCO2/Wh", 0.36, 360.0),
            ("mg/kWh", 360_000.0, 360.0),
            ("Carbon intensity gCO₂eq/kWh (direct)", 360.0, 360.0),
            ("gCO2-eq per kWh", 360.0, 360.0),
            ("lbs_co2_per_mwh", 1.0, 0.453_592_37),
            ("MOER (lbs/MWh)", 1.0, 0.453_592_37),
            ("tCO2/MWh", 0.36, 360.0),
            ("t CO2/GWh", 360.0, 360.0),
            ("short tons/MWh", 1.0, 907.184_74),
            ("carbon_intensity_g_kwh", 360.0, 360.0),
            ("gCo2PerkWh", 360.0, 360.0),
            ("gCO2äq/kWh", 360.0, 360.0),
            ("kg CO2-Äquivalent/MWh", 360.0, 360.0),
            ("g CO2-Aeq/kWh", 360.0, 360.0),
            ("kgCO2éq/MWh", 360.0, 360.0),
            ("kg CO2 équivalent/MWh", 360.0, 360.0),
            ("gCO2/kW·h", 360.0, 360.0),
            ("carbon_intensity_kg", 0.36, 360.0),
            ("carbonIntensity", 360.0, 360.0),
            ("Import/Export CO2", 360.0, 360.0),
        ] {
            let unit = read_unit(name, UnitKind::Mass).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!((value * unit.per_kwh() - grams).abs() < 1e-6, "{name}: {unit:?}");
        }
    }

    #[test]
    fn units_that_are_not_known_are_refused() {
        for (name, kind, part) in [
            ("EUR/therm", UnitKind::Money, "\"therm\" is no unit of energy"),
            ("price_per_therm", UnitKind::Money, "\"therm\" is no unit of energy"),
            ("EUR/MW", UnitKind::Money, "\"mw\" is no unit of energy"),
            ("EUR/100kWh", UnitKind::Money, "\"100\" is no unit of energy"),
            ("EUR/kWhth", UnitKind::Money, "\"kwhth\" is no unit of energy"),
            ("Foo/kWh", UnitKind::Money, "\"foo\" is no unit of money"),
            ("Zone C EUR/kWh", UnitKind::Money, "\"c\" is no unit of money"),
            ("zone_c_kwh", UnitKind::Money, "write a / after it"),
            ("region_c_kwh", UnitKind::Money, "write a / after it"),
            ("centavos/kWh", UnitKind::Money, "\"centavos\" is no unit of money"),
            ("microgram/kWh", UnitKind::Mass, "\"microgram\" is no unit of mass"),
            ("EUR/kWh or EUR/MWh", UnitKind::Money, "it has two units"),
            ("µgCO2/kWh", UnitKind::Mass, "\"µgco2\" is no unit of mass"),
            ("oz CO2/MWh", UnitKind::Mass, "\"oz\" is no unit of mass"),
            ("gC/kWh", UnitKind::Mass, "\"gc\" is no unit of mass"),
            ("gCO2/km", UnitKind::Mass, "\"km\" is no unit of energy"),
            ("lb/MMBtu", UnitKind::Mass, "is no unit of energy"),
        ] {
            let message = read_unit(name, kind).unwrap_err().to_string();
            assert!(message.contains(part) && message.contains("; name the unit in the header"), "{name}: {message}");
        }
    }
}
