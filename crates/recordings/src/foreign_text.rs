//! Texts of other programs that are no table, by what cannot be mistaken in a line: split into cells they would look like one.

/// Kind of a foreign text, and the way to a readable one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ForeignText {
    /// Continues "it is".
    pub(crate) what: &'static str,
    pub(crate) remedy: &'static str,
}

/// Lines of a text that are looked at.
pub(crate) const LINES_OF_FOREIGN_TEXT: usize = 8;

const QUERY: &str =
    "record a table: nvidia-smi --query-gpu=timestamp,uuid,name,power.draw.instant,power.draw --format=csv -l 1 > smi.csv";
const FIELDS: &str = "export it as CSV with a column for each field, for example time,host,index,power_draw";
const TEGRASTATS: &str = "write its power as a table: (echo time,power_mW; awk 'match($0, /(VDD_IN|POM_5V_IN) [0-9]+/) {power = \
                          substr($0, RSTART, RLENGTH); sub(/.* /, \"\", power); print $1 \" \" $2 \",\" power}' tegrastats.log) > \
                          power.csv, and import it as csv with --map power_watts=power_mW --meter module --time-format \
                          '%m-%d-%Y %H:%M:%S'; without times in its lines, use --interval; a module without VDD_IN draws the sum of its \
                          rails";
const BODY: &str = "save the body alone: curl without -i";
const SERIES: &str = "export it as CSV, or ask /api/v1/query_range of the database";
const POINTS: &str =
    "write its points as a table, for example with jq and @csv, or export to a Prometheus and ask /api/v1/query_range";

/// Returns the kind of text that a line belongs to, if it is a text that is no table.
pub(crate) fn foreign_text(line: &str) -> Option<ForeignText> {
    let line = line.trim();
    let (what, remedy) = match () {
        () if line.starts_with("=====") && line.contains("NVSMI LOG") => ("the text of nvidia-smi -q", QUERY),
        () if line.starts_with("| NVIDIA-SMI ") => ("the table that nvidia-smi draws on a terminal", QUERY),
        () if line.starts_with("HTTP/") && line.split_whitespace().nth(1).is_some_and(is_http_status) => {
            ("an HTTP answer with its head", BODY)
        }
        () if is_of_tegrastats(line) => ("the text of tegrastats", TEGRASTATS),
        () if is_line_protocol(line) => ("InfluxDB's line protocol", FIELDS),
        () => return None,
    };
    Some(ForeignText { what, remedy })
}

/// Returns the kind of a JSON text that is neither an answer of Prometheus nor one of our events; `None` if it is not known.
pub(crate) fn foreign_json(text: &str) -> Option<ForeignText> {
    let has = |keys: &[&str]| keys.iter().all(|key| text.contains(&format!("\"{key}\"")));
    let (what, remedy) = match () {
        () if has(&["resourceMetrics"]) => ("OpenTelemetry's JSON", POINTS),
        () if has(&["metric", "values", "timestamps"]) => ("an export of VictoriaMetrics", SERIES),
        () => return None,
    };
    Some(ForeignText { what, remedy })
}

/// Returns whether a line is of tegrastats, such as `RAM 2448/7620MB (lfb 4x4MB) … GR3D_FREQ 45%`, with a time before it or
/// without.
fn is_of_tegrastats(line: &str) -> bool {
    let has_memory = line.split_once("RAM ").is_some_and(|(before, after)| {
        before.chars().all(|c| c.is_ascii_digit() || "-/: ".contains(c)) && after.contains("MB (lfb ")
    });
    has_memory && ["EMC_FREQ", "GR3D_FREQ", " CPU ["].iter().any(|word| line.contains(word))
}

fn is_http_status(text: &str) -> bool {
    text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns whether a line is `measurement,tag=value… field=value,… time`: with the tags or the time, of which a table has
/// neither.
fn is_line_protocol(line: &str) -> bool {
    let is_pair = |pair: &str| pair.split_once('=').is_some_and(|(key, value)| !key.is_empty() && !value.is_empty());
    let mut parts = line.split(' ');
    let (Some(series), Some(fields)) = (parts.next(), parts.next()) else { return false };
    let (time, rest) = (parts.next(), parts.next());
    let mut tags = series.split(',');
    let is_named = tags.next().is_some_and(|name| !name.is_empty() && !name.contains(['"', '=', '{']));
    let has_tags = series.contains(',');
    let is_time = |time: &str| time.len() >= 10 && time.bytes().all(|byte| byte.is_ascii_digit());
    let has_time = time.is_some_and(is_time);
    is_named
        && tags.all(is_pair)
        && fields.split(',').all(is_pair)
        && rest.is_none()
        && (time.is_none() || has_time)
        && (has_tags || has_time)
}

/// Returns the label before a word in a cell, if it is one that a program writes before each line of another's output:
/// `node01: ` of pdsh, `0: ` of srun, `[1,0]<stdout>:` of mpirun, `smi-1  | ` of docker, a time of kubectl.
pub(crate) fn line_label<'c>(cell: &'c str, word: &str) -> Option<&'c str> {
    let at = cell.len().checked_sub(word.len()).filter(|at| cell.is_char_boundary(*at))?;
    let (label, end) = cell.split_at(at);
    let is_label = end.eq_ignore_ascii_case(word) && label.ends_with([' ', ':', '|', '>', ']', '\t']) && !label.trim().is_empty();
    is_label.then_some(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_other_programs_are_distinguished_from_tables() {
        for (line, what) in [
            ("==============NVSMI LOG==============", "the text of nvidia-smi -q"),
            ("| NVIDIA-SMI 535.104.05             Driver Version: 535.104.05   CUDA Version: 12.2     |", "the table that"),
            ("HTTP/1.1 200 OK", "an HTTP answer"),
            ("nvidia_smi,host=n1,index=0 power_draw=300,temperature_gpu=60i 1738576800000000000", "InfluxDB's"),
            ("power value=300 1738576800000000000", "InfluxDB's"),
            ("power,host=n1 value=300", "InfluxDB's"),
            (
                "RAM 2448/7620MB (lfb 4x4MB) SWAP 0/3810MB (cached 0MB) CPU [12%@1510,off] EMC_FREQ 0% GR3D_FREQ 45%",
                "the text of tegra",
            ),
            ("03-04-2025 10:00:00 RAM 2448/7620MB (lfb 4x4MB) CPU [12%@1510] VDD_IN 5000mW/5000mW", "the text of tegra"),
        ] {
            assert!(foreign_text(line).is_some_and(|found| found.what.starts_with(what)), "{line}");
        }
        for line in [
            "time,power",
            "timestamp, index, power.draw [W]",
            "| time | power |",
            "=====",
            "time power",
            "time a=b",
            "HTTP requests,power",
            "2025-02-03T10:00:00Z,300,note=x y=2",
            "name=a,b=c d=e",
            "time,RAM used (MB),GR3D_FREQ",
            "",
        ] {
            assert_eq!(foreign_text(line), None, "{line}");
        }
    }

    #[test]
    fn labels_before_lines_are_found() {
        for (cell, label) in [
            ("node01: timestamp", Some("node01: ")),
            ("[1,0]<stdout>:timestamp", Some("[1,0]<stdout>:")),
            ("smi-1  | timestamp", Some("smi-1  | ")),
            ("2025-02-03T10:00:00.1Z timestamp", Some("2025-02-03T10:00:00.1Z ")),
            ("timestamp", None),
            (" timestamp", None),
            ("my_timestamp", None),
        ] {
            assert_eq!(line_label(cell, "timestamp"), label, "{cell}");
        }
    }
}
