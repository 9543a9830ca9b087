//! Grafana's dashboards, and Prometheus' recording and alert rules with their tests: all from here, so that no name drifts.
//!
//! `cargo xtask generate` writes them; a test holds every metric in them against docs/reference/metrics.md, and another one runs every query
//! against a real Prometheus.

mod boards;
mod rules;

/// Returns the path and content of each file.
pub fn files() -> Vec<(String, String)> {
    let mut files: Vec<(String, String)> =
        boards::all().iter().map(|board| (format!("deploy/grafana/dashboards/{}.json", board.file), board.json())).collect();
    // A kustomization cannot refer to a file outside of it.
    for folder in ["deploy/prometheus", "deploy/monitoring"] {
        files.push((format!("{folder}/rules.yml"), rules::rules()));
    }
    files.push(("deploy/prometheus/rules.test.yml".to_owned(), rules::tests()));
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boards_are_those_that_the_documents_name_and_every_panel_describes_what_it_shows() {
        let boards = boards::all();
        let titles: Vec<&str> = boards.iter().map(|board| board.title).collect();
        assert_eq!(titles, ["EADT · GPU Metrics", "EADT · Energy Efficiency", "EADT · MPS Sharing", "EADT · Pipeline"]);
        for board in &boards {
            let json: serde_json::Value = serde_json::from_str(&board.json()).unwrap();
            let panels = json["panels"].as_array().unwrap();
            assert!(panels.len() >= 5, "{}", board.title);
            let mut titles: Vec<&str> = panels.iter().map(|panel| panel["title"].as_str().unwrap()).collect();
            for panel in panels {
                let text = panel.to_string();
                assert!(!text.contains("vector("), "{}: a 0 that nobody has measured: {text}", board.title);
                assert!(!panel["description"].as_str().unwrap().is_empty(), "{}: {}", board.title, panel["title"]);
                let at = &panel["gridPos"];
                assert!(at["x"].as_u64().unwrap() + at["w"].as_u64().unwrap() <= 24, "{panel}");
            }
            titles.sort_unstable();
            titles.dedup();
            assert_eq!(titles.len(), panels.len(), "{}: two panels of one name", board.title);
        }
    }
}
