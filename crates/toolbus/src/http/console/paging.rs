//! Long lists, a page of rows at a time.

use std::ops::Range;

use maud::{Markup, html};

use super::page::url_encoded;

/// Rows of a list that one page has.
const MAX_ROWS: usize = 200;

/// The rows of a list that a page shows.
pub(super) struct Paging {
    rows: Range<usize>,
    total: usize,
}

impl Paging {
    /// The rows after the first `skip` ones, as an address has it, of a list of `total`.
    pub(super) fn new(skip: &str, total: usize) -> Self {
        let begin = skip.trim().parse::<usize>().unwrap_or_default().min(total);
        Self { rows: begin..total.min(begin.saturating_add(MAX_ROWS)), total }
    }

    /// The rows of the page.
    pub(super) fn of<'a, T>(&self, all: &'a [T]) -> &'a [T] {
        all.get(self.rows.clone()).unwrap_or_default()
    }

    /// Links to the rows before and after these, at the same address with its other parameters.
    pub(super) fn links(&self, path: &str, parameters: &[(&str, &str)]) -> Markup {
        let address = |skip: usize| {
            let given = parameters.iter().filter(|(_, value)| !value.is_empty());
            let query: Vec<_> = given.map(|(name, value)| format!("{name}={}&", url_encoded(value))).collect();
            format!("{path}?{}skip={skip}", query.concat())
        };
        let Self { rows: Range { start, end }, total } = self;
        html! {
            @if *start > 0 || end < total {
                p.pages {
                    (start + 1) "–" (end) " of " (total)
                    @if *start > 0 { " " a rel="prev" href=(address(start.saturating_sub(MAX_ROWS))) { "previous" } }
                    @if end < total { " " a rel="next" href=(address(*end)) { "next" } }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_a_long_list_is_on_one_page() {
        let all: Vec<usize> = (0..450).collect();
        let pages = ["", "200", "400"].map(|skip| Paging::new(skip, all.len()).of(&all).to_vec());
        assert_eq!(pages.concat(), all);
        for skip in ["450", "99999999999", "18446744073709551615"] {
            assert!(Paging::new(skip, all.len()).of(&all).is_empty(), "{skip}");
        }
        assert_eq!(Paging::new("-1", all.len()).of(&all).len(), MAX_ROWS);
    }

    #[test]
    fn links_keep_the_filters() {
        let links = |skip: &str, total| Paging::new(skip, total).links("/p", &[("a", "x&y"), ("b", "")]).into_string();
        assert_eq!(links("", 200), "");
        assert_eq!(
            links("", 201),
            r#"<p class="pages">1–200 of 201 <a rel="next" href="/p?a=x%26y&amp;skip=200">next</a></p>"#
        );
        assert_eq!(
            links("200", 201),
            r#"<p class="pages">201–201 of 201 <a rel="prev" href="/p?a=x%26y&amp;skip=0">previous</a></p>"#
        );
    }
}
