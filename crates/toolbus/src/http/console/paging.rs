//! Long lists, a page of rows at a time.

use maud::{Markup, html};

use super::PATH;
use super::page::query;

/// Rows of a list on one page.
const PER_PAGE: usize = 200;

/// The rows of one page of a list, of which the address has the number.
pub(super) struct Paged<'a, T> {
    pub(super) rows: &'a [T],
    number: usize,
    total: usize,
}

impl<'a, T> Paged<'a, T> {
    /// The page of this number, the first is 1. A number that is none, or too great, is the nearest one.
    pub(super) fn new(all: &'a [T], number: &str) -> Self {
        let last = all.len().div_ceil(PER_PAGE).max(1);
        let number = number.trim().parse::<usize>().unwrap_or(1).clamp(1, last);
        let rows = all.chunks(PER_PAGE).nth(number - 1).unwrap_or_default();
        Self { rows, number, total: all.len() }
    }

    /// Number of rows, and links to the pages before and after with these filters.
    pub(super) fn links(&self, path: &str, filters: &[(&str, &str)]) -> Markup {
        let first = (self.number - 1) * PER_PAGE;
        let to = |number: usize| {
            let number = number.to_string();
            let pairs = filters.iter().copied().chain([("page", number.as_str())]);
            format!("{PATH}{path}{}", query(pairs))
        };
        html! {
            @if self.total > PER_PAGE {
                p.pages {
                    @if self.number > 1 { a href=(to(self.number - 1)) rel="prev" { "previous" } " " }
                    (first + 1) "–" (first + self.rows.len()) " of " (self.total)
                    @if first + self.rows.len() < self.total { " " a href=(to(self.number + 1)) rel="next" { "next" } }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_a_long_list_is_on_one_page_and_an_unknown_page_is_the_nearest() {
        let all: Vec<usize> = (0..450).collect();
        assert_eq!(["", "2", "3"].map(|number| Paged::new(&all, number).rows.to_vec()).concat(), all);
        let first = |number| Paged::new(&all, number).rows.first().copied();
        assert_eq!([first("0"), first("x"), first("4")], [0, 0, 400].map(Some));
        assert_eq!(Paged::new(&all[..0], "2").rows, [0_usize; 0]);
    }

    #[test]
    fn links_keep_the_filters() {
        let all = [0; 201];
        let links = |number| Paged::new(&all, number).links("/p", &[("a", "x&y"), ("b", "")]).into_string();
        assert_eq!(Paged::new(&all[..200], "").links("/p", &[]).into_string(), "");
        assert_eq!(
            links(""),
            r#"<p class="pages">1–200 of 201 <a href="/console/p?a=x%26y&amp;page=2" rel="next">next</a></p>"#
        );
        assert_eq!(
            links("2"),
            r#"<p class="pages"><a href="/console/p?a=x%26y&amp;page=1" rel="prev">previous</a> 201–201 of 201</p>"#
        );
    }
}
