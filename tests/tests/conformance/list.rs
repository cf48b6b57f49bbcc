//! The list of what does not pass: that it names what there is, and that the page says the same.

use std::path::Path;

use toolbus_e2e::conformance::{Listed, listed, scenarios};

const SIDES: [&str; 2] = ["client", "server"];

#[tokio::test]
async fn the_list_names_scenarios_that_there_are_and_each_once() {
    for side in SIDES {
        let all = scenarios(side).await;
        let mut names: Vec<_> = listed(side).into_iter().flat_map(|entry| entry.scenarios).collect();
        let unknown: Vec<_> = names.iter().filter(|name| !all.contains(name)).collect();
        assert!(unknown.is_empty(), "the suite has no scenarios {unknown:?}");
        names.sort();
        let repeated: Vec<_> = names.windows(2).filter(|pair| pair.first() == pair.last()).collect();
        assert!(repeated.is_empty(), "listed twice: {repeated:?}");
    }
}

#[test]
fn the_page_shows_the_list() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/mcp.md");
    let page = std::fs::read_to_string(page).unwrap();
    for side in SIDES {
        let row = |entry: Listed| {
            let names: Vec<_> = entry.scenarios.iter().map(|name| format!("`{name}`")).collect();
            format!("| {} | {} |\n", names.join(", "), entry.reason)
        };
        let rows: String = listed(side).into_iter().map(row).collect();
        let table = format!("\n| `{side}` scenario | Why it does not pass |\n|---|---|\n{rows}\n");
        assert!(page.contains(&table), "docs/mcp.md does not have this table:\n{table}");
    }
}
