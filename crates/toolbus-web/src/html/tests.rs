//! From HTML to Markdown, construct by construct.

use proptest::prelude::*;

use super::*;

fn converted(html: &str, part: PagePart) -> Converted {
    let url = Url::parse("https://site.example/docs/page.html?x=1#top").unwrap();
    convert(html, &url, part, &HtmlLimits::generous())
}

fn markdown(html: &str) -> String {
    converted(html, PagePart::Full).markdown
}

fn article(html: &str) -> String {
    converted(html, PagePart::Article).markdown
}

#[test]
fn each_element_becomes_its_markdown() {
    let table = [
        ("<h1>One</h1><h2>Two <code>x</code></h2><h6>Six</h6>", "# One\n\n## Two `x`\n\n###### Six"),
        ("<p>a\n b&nbsp;c</p><p>d<br>e</p>", "a b c\n\nd\ne"),
        ("<p>a <b> bold </b> b <i>it</i>, <b></b><em> </em>c</p>", "a **bold** b *it*, c"),
        ("<b><strong>x</strong> y</b>", "**x y**"),
        ("<b><p>x</p></b>", "x"),
        ("<p>x <del>y</del> <q>z</q></p>", "x ~~y~~ “z”"),
        ("<p><a href='../a b?q=(1)#f'>link</a></p>", "[link](https://site.example/a%20b?q=%281%29#f)"),
        ("<a href='/x'><h3>Card</h3><p>Text</p></a>", "[Card Text](https://site.example/x)"),
        ("<a href='#x'>here</a> <a href='javascript:x()'>run</a> <a>none</a>", "here run none"),
        ("<h2>Title<a class=anchor href='#t'>¶</a></h2>", "## Title"),
        ("<a href='/x'> </a>y", "y"),
        (
            "<p>See <a href='https://a.example/b_c(1)'>https://a.example/b_c(1)</a>, <a href=b.html>b.html</a>.",
            "See <https://a.example/b_c%281%29>, [b.html](https://site.example/docs/b.html).",
        ),
        (
            "<a href='/x'><img src='i.png' alt='Logo'></a>",
            "[![Logo](https://site.example/docs/i.png)](https://site.example/x)",
        ),
        ("<img src='i.png'><img src='data:image/png;base64,AA' alt='x'>y", "y"),
        ("<ul><li>a<li>b<ul><li>c</ul><li><p>d</p></ul><p>e", "- a\n- b\n  - c\n- d\n\ne"),
        ("<ol start=9><li>a<li>b<p>more</p></ol>", "9. a\n10. b\n\n    more"),
        ("<ul><li></li><li>x</li></ul>", "- x"),
        ("<blockquote><p>a<p>b<blockquote>c</blockquote></blockquote>d", "> a\n>\n> b\n>\n> > c\n\nd"),
        ("<ul><li><pre>a\n\n  b</pre></ul>", "- ```\n  a\n\n    b\n  ```"),
        (
            "<pre><code class='language-rust'>fn a() {\n    b&lt;c&gt;();\n}\n</code></pre>",
            "```rust\nfn a() {\n    b<c>();\n}\n```",
        ),
        ("<div class='highlight-python notranslate'><pre>x = <b>1</b></pre></div>", "```python\nx = 1\n```"),
        (
            "<pre><button>Copy</button><code>a<span hidden>b</span>\n<span class=menu>c</span></code><svg><text>x</text></svg></pre>",
            "```\na\nc\n```",
        ),
        ("<code>a<button>Copy</button></code>", "`a`"),
        ("<pre><code>import a\nb</code><code>require a</code></pre>", "```\nimport a\nb\nrequire a\n```"),
        ("<pre><div>a</div><div>b</div></pre>", "```\na\nb\n```"),
        ("<pre>a <code>b</code> c</pre>", "```\na b c\n```"),
        ("<pre>a ``` b</pre>", "````\na ``` b\n````"),
        ("<code>a  `b`</code>", "`` a `b` ``"),
        ("<code> </code>x", "x"),
        ("<dl><dt>term<dd>what<p>more</dl>", "term\n: what\n\n  more"),
        ("a<hr>b", "a\n\n---\n\nb"),
        ("<ruby>漢<rp>(</rp><rt>かん</rt><rp>)</rp></ruby>", "漢(かん)"),
        ("<math alttext='x^2'><mi>x</mi></math>", "$x^2$"),
        ("<details><summary>More</summary><p>text</p></details>", "More\n\ntext"),
        ("<div>a</div><div>b</div>", "a\n\nb"),
        ("<script>x</script><style>y</style><svg><text>z</text></svg><template>t</template>a", "a"),
    ];
    for (html, expected) in table {
        assert_eq!(markdown(html), expected, "{html}");
    }
}

#[test]
fn only_signs_of_markdown_are_escaped() {
    let table = [
        (
            "<p>*a* snake_case _b_ 2 &lt; 3 &lt;b&gt; `c` C:\\dir \\*",
            "\\*a\\* snake_case \\_b\\_ 2 < 3 \\<b> \\`c\\` C:\\dir \\\\\\*",
        ),
        (
            "<p># no<p>1. no<p>- no<p>+ no<p>&gt; no<p>---<p>#yes 1.5 -x",
            "\\# no\n\n\\1. no\n\n\\- no\n\n\\+ no\n\n\\> no\n\n\\---\n\n#yes 1.5 -x",
        ),
        ("<p>[1] a](b)", "[1] a\\](b)"),
        ("<p><a href=/x>[1]</a> | ~~x", "[\\[1\\]](https://site.example/x) | \\~~x"),
        ("<p>a_<b>b</b>", "a\\_**b**"),
    ];
    for (html, expected) in table {
        assert_eq!(markdown(html), expected, "{html}");
    }
}

#[test]
fn a_data_table_is_a_table_and_a_layout_table_is_none() {
    let table = [
        (
            "<table><caption>Sizes</caption><thead><tr><th>Name<th>a | b</thead><tr><td>x<td><b>1</b><br>2</table>",
            "Sizes\n\n| Name | a \\| b |\n| --- | --- |\n| x | **1** 2 |",
        ),
        ("<table><tr><td>a<td>b<tr><td>c</table>", "| | |\n| --- | --- |\n| a | b |\n| c | |"),
        (
            "<table><tr><th>a<th colspan=2>b<tr><td rowspan=2>c<td>d<td>e<tr><td>f<td>g</table>",
            "| a | b | |\n| --- | --- | --- |\n| c | d | e |\n| | f | g |",
        ),
        ("<table><tr><td><ul><li>a<li>b</ul><td><code>x|y</code></table>", "| | |\n| --- | --- |\n| a b | `x\\|y` |"),
        ("<table><tr><td>only<tr><td>one</table>", "only\n\none"),
        (
            "<a href='/x'><table><caption>Sizes<caption>Prices<tr><td>a<td>b</table></a>",
            "[Sizes; Prices; a, b](https://site.example/x)",
        ),
        ("<table><tr><td>1<td><pre>code</pre></table>", "1\n\n```\ncode\n```"),
        ("<table><tr><td><table><tr><td>a<td>b</table><td>c</table>", "| | |\n| --- | --- |\n| a | b |\n\nc"),
        (
            "<table><tr><td rowspan=2>a<td>b<td rowspan=3>c<tr><td>d<tr><td>e</table>",
            "| | | |\n| --- | --- | --- |\n| a | b | c |\n| | d | |\n| e | | |",
        ),
        ("<table><tr><td colspan=99999999 rowspan=99999999>a<td>b</table>", ""),
    ];
    for (html, expected) in table {
        let found = markdown(html);
        if expected.is_empty() {
            assert!(found.len() < 2000 && found.contains("| a |"), "{found}");
        } else {
            assert_eq!(found, expected, "{html}");
        }
    }
}

#[test]
fn markdown_far_longer_than_its_page_ends_at_the_limit() {
    let limited = |html: &str| {
        let limits = HtmlLimits::new(Duration::from_secs(600), 1 << 20);
        convert(html, &Url::parse("https://site.example/").unwrap(), PagePart::Full, &limits)
    };
    let cells = "<tr><td rowspan=1000 colspan=99><td>a".to_owned() + &"<tr><td>".repeat(999);
    let code = format!("{}<pre>{}</pre>", "<blockquote>".repeat(190), "a\n".repeat(400_000));
    let base = format!("<base href='https://site.example/{}/'>", "a".repeat(2000));
    let links = format!("{base}<table><tr>{}</table>", format!("<td>{}", "<a href=a>b</a>".repeat(400)).repeat(50));
    for html in [format!("<table>{}</table>", cells.repeat(40)), code, links] {
        let found = limited(&html);
        assert!(found.is_cut && found.markdown.len() < 2 << 20, "{}", found.markdown.len());
    }
}

const FRAMED: &str = "<title>The  Title</title><body><header><a href=/>Home</a></header><nav><a href=/a>A</a></nav>
    <div class='cookie-banner'>We use cookies.</div><div id=sidebar>Links</div>
    <main><article><header><h1>Head</h1></header><p>This is the content.</p><aside>Beside</aside></article></main>
    <p hidden>not shown</p><p style='display: none'>not shown</p><p style='font-size:0px'>not shown</p>
    <footer>Imprint</footer></body>";

#[test]
fn the_article_excludes_its_surroundings_and_the_full_page_has_all_visible_text() {
    assert_eq!(article(FRAMED), "# Head\n\nThis is the content.");
    let full = markdown(FRAMED);
    for part in ["Home", "A", "cookies", "Links", "Head", "content", "Beside", "Imprint"] {
        assert!(full.contains(part), "{part}: {full}");
    }
    assert!(!full.contains("not shown"));
    assert_eq!(converted(FRAMED, PagePart::Full).title, "The Title");
}

#[test]
fn the_footer_of_an_article_stays_unless_it_is_little_but_links() {
    let page = |footer: &str| {
        let text = "Words of a text that is long enough to be one. ".repeat(10);
        article(&format!(
            "<main><article><p>{text}</p><footer>{footer}</footer></article></main><footer>Imprint</footer>"
        ))
    };
    let comments = page("<h3>Comments</h3><p><a href=/ana>Ana</a> Is this so?</p><p>It is.</p>");
    assert!(
        comments.ends_with("one.\n\n### Comments\n\n[Ana](https://site.example/ana) Is this so?\n\nIt is."),
        "{comments}"
    );
    let author = page("Posted by Ana.");
    assert!(author.ends_with("one.\n\nPosted by Ana."), "{author}");
    let links = page("See <a href=/older>An older post</a> <a href=/newer>A newer post</a>");
    assert!(links.ends_with("one."), "{links}");
}

#[test]
fn without_marks_the_element_with_most_prose_is_the_article() {
    let prose = "Words of a text that is long enough to be one. ".repeat(10);
    let html = format!(
        "<div><div><a href=/a>A link of a list</a> <a href=/b>Another</a></div>\
         <div><div><p>{prose}</p><p>{prose}</p><h2>Next</h2><p>{prose}</p></div></div><div>{}</div></div>",
        "<a href=/x>More to read here</a> ".repeat(20)
    );
    let found = article(&html);
    assert!(found.starts_with("Words of a text") && found.contains("## Next"), "{found}");
    assert!(!found.contains("Another") && !found.contains("More to read"), "{found}");
}

#[test]
fn text_beside_an_unmarked_main_text_stays() {
    let prose = "Words of a text that is long enough to be one. ".repeat(10);
    let links = "<a href=/x>Link</a> ".repeat(10);
    let rest = format!("<div><p>{prose}</p><p>{prose}</p></div>");
    let table = [
        // A first paragraph before the element with the rest.
        (format!("<p>First.</p>{rest}"), "First.\n\nWords"),
        (format!("<div>First.</div><div>{links}</div>{rest}"), "First.\n\nWords"),
        (format!("<h1>Head</h1><p>First <a href=/x>link</a> of it.</p>{rest}"), "# Head\n\nFirst [link]"),
        (format!("First, <b>bold</b> and <a href=/x>linked</a>.{rest}"), "First, **bold** and [linked]"),
        (format!("<div><div><p>First.</p></div><div>{rest}</div></div>"), "First.\n\nWords"),
        // Text in elements that are no paragraphs.
        (format!("<div>First.</div><div>{prose}</div><div>{prose}</div>"), "First.\n\nWords"),
        (format!("<div>First.</div><div>{prose}{prose}</div>"), "First.\n\nWords"),
        (format!("First.<br><br>{prose}<br>{prose}"), "First.\nWords"),
        (format!("<div>{links}</div><div>Log in</div><div>First.</div>{rest}<div>{links}</div>"), "First.\n\nWords"),
        (format!("<a href=/>Home</a> | <a href=/a>About</a><div>First.</div>{rest}"), "First.\n\nWords"),
    ];
    for (html, start) in table {
        let found = article(&html);
        assert!(found.starts_with(start), "{html}\n{found}");
        assert!(found.ends_with("to be one.") && !found.contains("[Link]") && !found.contains("Log in"), "{found}");
    }
    let after = article(&format!("{rest}<p>The last one.</p><div>Share</div><div>{links}</div>"));
    assert!(after.ends_with("to be one.\n\nThe last one."), "{after}");
}

#[test]
fn a_table_in_a_cell_keeps_its_cells_and_those_around_it_apart() {
    let inner = "<table><tr><td>1<td>2<tr><td>3<td>4</table>";
    let html = format!("<table><tr><th>Name<th>Sizes<tr><td>a<td>{inner}<tr><td>b<td>5</table>");
    assert_eq!(markdown(&html), "| Name | Sizes |\n| --- | --- |\n| a | 1, 2; 3, 4 |\n| b | 5 |");
    // One that lays out a page.
    let html = format!("<table><tr><td>Menu<td><p>Text</p>{inner}</table>");
    assert!(markdown(&html).ends_with("| | |\n| --- | --- |\n| 1 | 2 |\n| 3 | 4 |"), "{}", markdown(&html));
}

#[test]
fn superscripts_subscripts_and_fractions_keep_their_values() {
    let table = [
        ("10<sup>23</sup> and 2<sup>10</sup> = 1024", "10²³ and 2¹⁰ = 1024"),
        ("H<sub>2</sub>O, x<sub>max</sub>", "H₂O, x\\_(max)"),
        ("e<sup>-<i>kt</i></sup>", "e^(-kt)"),
        ("2<sup>2<sup>3</sup></sup>", "2^(2³)"),
        ("in 1998<sup><a href='#fn1'>1</a></sup>", "in 1998¹"),
        ("the 21<sup>st</sup> of May<sup>[4]</sup>", "the 21st of May[4]"),
        ("10<span style='vertical-align: super; font-size: 60%'>6</span>", "10⁶"),
        ("<code>10<sup>23</sup></code>", "`10²³`"),
        ("<pre>10<sup>23</sup></pre>", "```\n10²³\n```"),
        ("<table><tr><th>a<th>b<tr><td>10<sup>3</sup><td>5</table>", "| a | b |\n| --- | --- |\n| 10³ | 5 |"),
        ("<math><msup><mn>10</mn><mn>23</mn></msup></math>", "10²³"),
        ("<math><msubsup><mi>x</mi><mn>1</mn><mn>2</mn></msubsup></math>", "x₁²"),
        ("<math><mfrac><mn>1</mn><mrow><mn>2</mn><mi>a</mi></mrow></mfrac></math>", "1/(2a)"),
        ("<math><msqrt><mn>2</mn></msqrt></math>", "√2"),
    ];
    for (html, expected) in table {
        assert_eq!(markdown(html), expected, "{html}");
    }
    assert_eq!(converted("<title>CO</title><h1>x</h1>", PagePart::Full).title, "CO");
    assert_eq!(converted("<h1>CO<sub>2</sub> in 10<sup>3</sup> t</h1>", PagePart::Full).title, "CO₂ in 10³ t");
}

#[test]
fn all_posts_of_a_thread_are_kept() {
    let posts: String = (1..=3)
        .map(|n| format!("<article><h3>user{n}</h3><p>{}</p></article>", format!("Post {n} says this. ").repeat(20)))
        .collect();
    let found = article(&format!("<nav>menu</nav><div>{posts}</div>"));
    assert!((1..=3).all(|n| found.contains(&format!("Post {n}"))), "{found}");
}

#[test]
fn a_page_that_is_empty_without_scripts_has_a_note() {
    let needs = |html: &str| converted(html, PagePart::Article).needs_scripts;
    assert!(needs("<div id=root></div><script src=app.js></script><noscript>Enable JavaScript.</noscript>"));
    assert!(!needs("<p>Short and static."));
    assert!(!needs(&format!("<script>x</script><p>{}", "A text of some length. ".repeat(20))));
}

#[test]
fn the_title_is_that_of_the_head_or_of_a_heading() {
    let title = |html| converted(html, PagePart::Full).title;
    assert_eq!(title("<title>\n A &amp; B\n</title><h1>C</h1>"), "A & B");
    assert_eq!(title("<svg><title>icon</title></svg><h1>C <i>d</i></h1>"), "C d");
    assert_eq!(title("<title> </title><meta property=og:title content='G'>"), "G");
    assert_eq!(title("<p>x"), "");
}

#[test]
fn links_are_relative_to_the_base() {
    let html = "<base href='https://other.example/b/'><a href='c'>x</a>";
    assert_eq!(markdown(html), "[x](https://other.example/b/c)");
    let hostile = "<base href='javascript:x'><a href='c'>x</a>";
    assert_eq!(markdown(hostile), "[x](https://site.example/docs/c)");
    // Each link would copy it.
    let long = format!("<base href='https://other.example/{}'><a href='/c'>x</a>", "b/".repeat(2000));
    assert_eq!(markdown(&long), "[x](https://site.example/c)");
}

#[test]
fn pages_without_end_in_one_direction_are_cut_and_harm_nothing() {
    let deep = |tag: &str| format!("{}text", format!("<{tag}>").repeat(200_000));
    for tag in
        ["div", "ul><li", "blockquote", "b", "a href=x", "table><tr><td", "font", "span", "dl><dd", "svg", "math"]
    {
        let found = converted(&deep(tag), PagePart::Article);
        assert!(found.markdown.len() < 1 << 20, "{tag}: {}", found.markdown.len());
    }
    let wide = format!("<table>{}</table>", format!("<tr>{}", "<td>x".repeat(2000)).repeat(50));
    assert!(markdown(&wide).len() < 1 << 20);
    let limits = HtmlLimits { output: 1000, ..HtmlLimits::generous() };
    let url = Url::parse("https://site.example/").unwrap();
    let cut = convert(&"<p>word".repeat(10_000), &url, PagePart::Full, &limits);
    assert!(cut.is_cut && cut.markdown.len() < 2000);
    let late = HtmlLimits { until: Clock::SYSTEM.now(), ..HtmlLimits::generous() };
    assert!(convert(&"<p>word".repeat(100_000), &url, PagePart::Full, &late).is_cut);
}

#[test]
fn a_page_is_converted_within_its_time() {
    let late = HtmlLimits { until: Clock::SYSTEM.now(), ..HtmlLimits::generous() };
    let dom = Dom::parse("<p>word", &HtmlLimits::generous());
    let choice = ArticleChoice::of(&dom, PagePart::Article, &late);
    assert!(choice.is_short() && dom.ids().all(|id| choice.leaves_out(id)), "unexamined nodes may be hidden");
    assert!(!ArticleChoice::of(&dom, PagePart::Article, &HtmlLimits::generous()).is_short());
}

#[test]
fn the_text_of_a_node_is_that_of_its_first_nodes() {
    // Forms within each other may each have the whole page below, without a text.
    let dom = Dom::parse(&format!("<form>near{}far", "<!>".repeat(5000)), &HtmlLimits::generous());
    let form = dom.ids().find(|id| dom.name(*id) == "form").unwrap();
    assert_eq!(dom.text(form, 100), "near");
}

#[test]
fn the_language_of_code_is_looked_for_at_the_start_of_a_class() {
    // All blocks of code below an element look at its class.
    let code = |class: &str| markdown(&format!("<div class='{class} lang-rust'><pre>x</pre></div>"));
    assert_eq!(code(&"a ".repeat(100)), "```rust\nx\n```");
    assert_eq!(code(&"a ".repeat(1000)), "```\nx\n```");
}

#[test]
fn attributes_that_the_parser_copies_without_end_cut_the_page() {
    let font = |title: usize| format!("<p><font title='{}'>x{}", "a".repeat(title), "<p>word".repeat(2000));
    assert!(!converted(&font(10_000), PagePart::Full).is_cut);
    let cut = converted(&font(100_000), PagePart::Full);
    assert!(cut.is_cut && cut.markdown.matches("word").count() < 1500, "{}", cut.markdown.len());
    // Hidden elements stay hidden in the piece in which they become too many.
    let hidden = format!("<p><font hidden title='{}'>x{}", "a".repeat(1 << 20), "<p>word".repeat(2000));
    let cut = converted(&hidden, PagePart::Full);
    assert!(cut.is_cut && cut.markdown.is_empty(), "{}", cut.markdown);
}

proptest! {
    #[test]
    fn no_page_makes_the_conversion_panic(html in ".{0,400}") {
        converted(&html, PagePart::Article);
        converted(&html, PagePart::Full);
    }

    #[test]
    fn no_mess_of_tags_makes_the_conversion_panic_or_loses_a_word(
        parts in prop::collection::vec(
            prop::sample::select(vec![
                "<p>", "</p>", "<b>", "</b>", "<i>", "<a href='/x'>", "</a>", "<ul>", "<li>", "</ul>", "<ol start=7>", "<table>",
                "<tr>", "<td rowspan=3>", "<th colspan=2>", "</table>", "<caption>", "<blockquote>", "</blockquote>", "<pre>",
                "</pre>", "<code>", "</code>", "<h2>", "</h2>", "<div>", "</div>", "<br>", "<hr>", "<dl>", "<dt>", "<dd>",
                "<form>", "<nobr>", "<center>", "<details>", "word ", "zwei ", "<img alt=x src=y>",
            ]),
            0..60,
        )
    ) {
        let html = parts.concat();
        let found = markdown(&html);
        for word in ["word", "zwei"] {
            prop_assert_eq!(found.matches(word).count(), html.matches(word).count(), "{}\n{}", html, found);
        }
    }
}
