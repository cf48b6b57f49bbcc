//! What a server offers, in one line.

/// Most tools that are named.
const MAX_NAMED: usize = 10;

/// The summary that peers expect of a server: how many tools, and the names of the first ten.
#[must_use]
pub fn summary(tool_names: &[impl AsRef<str>]) -> String {
    if tool_names.is_empty() {
        return "No tools available.".to_owned();
    }
    let count = tool_names.len();
    let named: Vec<&str> = tool_names.iter().take(MAX_NAMED).map(AsRef::as_ref).collect();
    let rest = match count.saturating_sub(MAX_NAMED) {
        0 => ".".to_owned(),
        more => format!(" and {more} more."),
    };
    format!("Provides {count} tool(s): {}{rest}", named.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(count: usize) -> String {
        let names: Vec<String> = (1..=count).map(|n| format!("t{n}")).collect();
        summary(&names)
    }

    #[test]
    fn a_summary_names_at_most_ten_tools() {
        insta::assert_snapshot!(of(0), @"No tools available.");
        insta::assert_snapshot!(of(1), @"Provides 1 tool(s): t1.");
        insta::assert_snapshot!(of(10), @"Provides 10 tool(s): t1, t2, t3, t4, t5, t6, t7, t8, t9, t10.");
        insta::assert_snapshot!(of(11), @"Provides 11 tool(s): t1, t2, t3, t4, t5, t6, t7, t8, t9, t10 and 1 more.");
    }
}
