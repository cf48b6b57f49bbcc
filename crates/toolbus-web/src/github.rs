//! Issues, pull requests, files and repositories of GitHub, by its REST API: their pages are scripts for the most part.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, Request, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use toolbus_config::Secret;
use toolbus_outbound::{HttpClient, HttpClientError, HttpReply, read_up_to};
use url::Url;

use crate::page::PageText;

/// The API of github.com.
const PUBLIC_API: &str = "https://api.github.com";
/// The hosts whose pages are read by the API.
const HOSTS: [&str; 2] = ["github.com", "www.github.com"];
/// Most parts of a path that may belong to the name of a branch.
const MAX_BRANCH_PARTS: usize = 4;
/// Comments and files that are read: one page of the API.
const PER_PAGE: usize = 100;
/// Most bytes of one response.
const MAX_RESPONSE: usize = 8 << 20;
/// Longest time for one response; the page is read instead when the API does not respond.
const TIMEOUT: Duration = Duration::from_secs(10);
const JSON: &str = "application/vnd.github+json";
const RAW: &str = "application/vnd.github.raw+json";

/// Reads from GitHub's API.
#[derive(Debug)]
pub(crate) struct GitHub {
    client: HttpClient,
    /// `None` if it is configured and is no URL, which the check of the configuration refuses.
    api: Option<Url>,
    headers: HeaderMap,
}

/// Item that a URL of GitHub shows.
#[derive(Debug, PartialEq, Eq)]
enum GitHubItem<'a> {
    Issue(&'a str),
    Pull(&'a str),
    /// Revision and path; where the one ends and the other begins the API knows, because names of branches may have
    /// slashes.
    File(&'a [&'a str]),
    Repository,
}

/// Reply of GitHub's API for a page.
#[derive(Debug)]
pub(crate) enum GitHubReply {
    Page(PageText),
    /// Nothing: the page itself has to be read.
    None,
    /// The same, because too many requests were sent; until then, in seconds since 1970, if that is known.
    Limited(Option<i64>),
}

/// Reason for which a request to the API has no reply.
enum ApiError {
    /// There is nothing of the kind, or it is not given.
    Absent,
    /// Counterpart of [`GitHubReply::Limited`].
    Limited(Option<i64>),
}

impl GitHub {
    pub(crate) fn new(api: Option<&str>, token: Option<&Secret>) -> Result<Self, HttpClientError> {
        let mut headers = HeaderMap::new();
        let token = token.filter(|token| !token.expose().trim().is_empty());
        if let Some(Ok(mut value)) =
            token.map(|token| HeaderValue::try_from(format!("Bearer {}", token.expose().trim())))
        {
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        headers.insert(HeaderName::from_static("x-github-api-version"), HeaderValue::from_static("2022-11-28"));
        Ok(Self { client: HttpClient::new()?, api: Url::parse(api.unwrap_or(PUBLIC_API)).ok(), headers })
    }

    /// Whether a page is one of GitHub's.
    pub(crate) fn has(url: &Url) -> bool {
        url.host_str().is_some_and(|host| HOSTS.contains(&host)) && url.port().is_none()
    }

    /// Reads what a page of GitHub shows, if the page is one that the API has and gives.
    pub(crate) async fn read(&self, url: &Url, until: Instant) -> GitHubReply {
        let segments: Vec<&str> = url.path_segments().into_iter().flatten().filter(|part| !part.is_empty()).collect();
        let [owner, repository, rest @ ..] = segments.as_slice() else { return GitHubReply::None };
        let (true, Some(item)) = (is_name(owner) && is_name(repository), GitHubItem::of(rest)) else {
            return GitHubReply::None;
        };
        let name = format!("{owner}/{repository}");
        let until = until.min(toolbus_core::Clock::SYSTEM.now() + TIMEOUT);
        let reading = async {
            match item {
                GitHubItem::Issue(number) => self.thread(&name, number, false).await,
                GitHubItem::Pull(number) => self.thread(&name, number, true).await,
                GitHubItem::File(parts) => self.file(&name, parts).await,
                GitHubItem::Repository => self.repository(&name).await,
            }
        };
        match tokio::time::timeout_at(until.into(), reading).await {
            Ok(Ok(page)) => GitHubReply::Page(page),
            Ok(Err(ApiError::Limited(until))) => GitHubReply::Limited(until),
            Ok(Err(ApiError::Absent)) | Err(_) => GitHubReply::None,
        }
    }

    async fn thread(&self, name: &str, number: &str, is_pull: bool) -> Result<PageText, ApiError> {
        let kind = if is_pull { "pulls" } else { "issues" };
        let thread: Thread = self.json(&format!("repos/{name}/{kind}/{number}"), &[]).await?;
        let page = [("per_page", PER_PAGE.to_string())];
        let mut limit = None;
        let comments = self.json(&format!("repos/{name}/issues/{number}/comments"), &page).await;
        let comments: Vec<Comment> = or_missing(comments, &mut limit);
        let files: Vec<ChangedFile> = match is_pull {
            true => or_missing(self.json(&format!("repos/{name}/pulls/{number}/files"), &page).await, &mut limit),
            false => Vec::new(),
        };
        let mut page = thread.page(name, number, is_pull, &comments, &files);
        page.notes.extend(limit);
        Ok(page)
    }

    async fn file(&self, name: &str, parts: &[&str]) -> Result<PageText, ApiError> {
        let (parts, most) = match parts {
            // In full, the API does not take it together with a path.
            ["refs", "heads" | "tags", rest @ ..] => (rest, MAX_BRANCH_PARTS),
            parts => (parts, MAX_BRANCH_PARTS),
        };
        let mut found = Err(ApiError::Absent);
        for at in 1..=most.min(parts.len().saturating_sub(1)) {
            let (revision, path) = parts.split_at_checked(at).unwrap_or_default();
            let (revision, path) = (decoded(&revision.join("/")), path.join("/"));
            found = match self.text(&format!("repos/{name}/contents/{path}"), &[("ref", revision.clone())]).await {
                Err(ApiError::Absent) => continue,
                found => found.map(|text| (text, revision, decoded(&path))),
            };
            break;
        }
        let (text, revision, path) = found?;
        let language = path.rsplit_once('.').map_or("", |(_, extension)| extension);
        let is_markdown = language.eq_ignore_ascii_case("md") || language.eq_ignore_ascii_case("markdown");
        let title = format!("{path} [{name}, {revision}]");
        let fence = "`".repeat(text.split(|c| c != '`').map(str::len).max().unwrap_or_default().max(2) + 1);
        let text = match is_markdown {
            true => text,
            false => format!("{fence}{language}\n{}\n{fence}", text.trim_end_matches('\n')),
        };
        Ok(PageText { title, text, notes: Vec::new() })
    }

    async fn repository(&self, name: &str) -> Result<PageText, ApiError> {
        let found: Repository = self.json(&format!("repos/{name}"), &[]).await?;
        let mut limit = None;
        let readme = self.text(&format!("repos/{name}/readme"), &[]).await.map(Some);
        let readme = or_missing(readme, &mut limit);
        let mut text = String::new();
        if let Some(description) = &found.description {
            let _ = writeln!(text, "{description}\n");
        }
        let license = found.license.as_ref().and_then(|license| license.spdx_id.as_deref()).unwrap_or("none named");
        let topics = found.topics.join(", ");
        let lines = [
            ("Language", found.language.as_deref().unwrap_or("unknown")),
            ("Licence", license),
            ("Default branch", &found.default_branch),
            ("Stars", &found.stargazers_count.to_string()),
            ("Open issues", &found.open_issues_count.to_string()),
            ("Last push", found.pushed_at.as_deref().unwrap_or("never")),
            ("Topics", &topics),
            ("Archived", if found.archived { "yes" } else { "" }),
        ];
        for (key, value) in lines.into_iter().filter(|(_, value)| !value.is_empty()) {
            let _ = writeln!(text, "**{key}:** {value}");
        }
        if let Some(readme) = readme {
            let _ = write!(text, "\n---\n\n{}", readme.trim());
        }
        Ok(PageText { title: found.full_name, text, notes: limit.into_iter().collect() })
    }

    async fn json<T: DeserializeOwned>(&self, path: &str, query: &[(&str, String)]) -> Result<T, ApiError> {
        serde_json::from_slice(&self.get(path, query, JSON).await?).map_err(|_| ApiError::Absent)
    }

    async fn text(&self, path: &str, query: &[(&str, String)]) -> Result<String, ApiError> {
        let text = String::from_utf8(self.get(path, query, RAW).await?).ok();
        text.filter(|text| !text.contains('\0')).ok_or(ApiError::Absent)
    }

    async fn get(&self, path: &str, query: &[(&str, String)], accept: &'static str) -> Result<Vec<u8>, ApiError> {
        let mut url = self.api.clone().ok_or(ApiError::Absent)?;
        let base = url.path().trim_end_matches('/').to_owned();
        url.set_path(&format!("{base}/{path}"));
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let mut request = Request::new(Method::GET, url);
        *request.headers_mut() = self.headers.clone();
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static(accept));
        let Ok(HttpReply::Response(mut response)) = self.client.send(request).await else {
            return Err(ApiError::Absent);
        };
        match response.status() {
            StatusCode::OK => {
                let read = read_up_to(&mut response, MAX_RESPONSE).await.ok();
                read.and_then(|(bytes, is_whole)| is_whole.then_some(bytes)).ok_or(ApiError::Absent)
            }
            StatusCode::FORBIDDEN | StatusCode::TOO_MANY_REQUESTS => Err(limited(response.headers())),
            _ => Err(ApiError::Absent),
        }
    }
}

/// Whether a segment of a URL is a name of GitHub as it stands, which cannot lead to another part of the API.
fn is_name(segment: &str) -> bool {
    segment.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

/// A refusal: for too many requests, or because something is not given.
fn limited(headers: &HeaderMap) -> ApiError {
    let number = |name: &str| headers.get(name)?.to_str().ok()?.parse::<i64>().ok();
    let now = || jiff::Timestamp::try_from(toolbus_core::Clock::SYSTEM.wall()).ok().map(jiff::Timestamp::as_second);
    match (number("retry-after"), number("x-ratelimit-remaining")) {
        (Some(wait), _) => ApiError::Limited(now().map(|now| now.saturating_add(wait))),
        (None, Some(0)) => ApiError::Limited(number("x-ratelimit-reset")),
        _ => ApiError::Absent,
    }
}

/// A part of a page, or nothing, with a note if too many requests were sent.
fn or_missing<T: Default>(part: Result<T, ApiError>, limit: &mut Option<String>) -> T {
    part.unwrap_or_else(|error| {
        if let ApiError::Limited(until) = error {
            *limit = Some(limit_note(until, "so parts of this page are missing"));
        }
        T::default()
    })
}

/// A note that GitHub's API takes no more requests, and what follows from it.
pub(crate) fn limit_note(until: Option<i64>, consequence: &str) -> String {
    let until = until.and_then(|until| jiff::Timestamp::from_second(until).ok());
    let until = until.map_or_else(String::new, |until| format!(" until {until}"));
    format!("GitHub's API takes no more requests of this daemon{until}, {consequence}.")
}

fn decoded(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned()
}

impl<'a> GitHubItem<'a> {
    fn of(path: &'a [&'a str]) -> Option<Self> {
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        match path {
            [] => Some(Self::Repository),
            ["issues", number] if is_number(number) => Some(Self::Issue(number)),
            ["pull", number, ..] if is_number(number) => Some(Self::Pull(number)),
            ["blob" | "blame" | "raw", parts @ ..] if parts.len() > 1 => Some(Self::File(parts)),
            _ => None,
        }
    }
}

#[derive(Debug, Deserialize)]
struct User {
    login: String,
}

#[derive(Debug, Deserialize)]
struct Label {
    name: String,
}

/// An issue or a pull request.
#[derive(Debug, Deserialize)]
struct Thread {
    title: Option<String>,
    state: String,
    user: Option<User>,
    created_at: Option<String>,
    updated_at: Option<String>,
    html_url: String,
    body: Option<String>,
    #[serde(default)]
    labels: Vec<Label>,
    #[serde(default)]
    comments: usize,
    #[serde(default)]
    merged: bool,
    #[serde(default)]
    changed_files: usize,
}

#[derive(Debug, Deserialize)]
struct Comment {
    user: Option<User>,
    created_at: Option<String>,
    body: Option<String>,
}

#[derive(Debug, Deserialize)]
struct ChangedFile {
    filename: String,
    status: String,
    additions: usize,
    deletions: usize,
}

#[derive(Debug, Deserialize)]
struct License {
    spdx_id: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Repository {
    full_name: String,
    description: Option<String>,
    language: Option<String>,
    license: Option<License>,
    default_branch: String,
    stargazers_count: u64,
    open_issues_count: u64,
    pushed_at: Option<String>,
    #[serde(default)]
    topics: Vec<String>,
    #[serde(default)]
    archived: bool,
}

impl Thread {
    fn page(&self, name: &str, number: &str, is_pull: bool, comments: &[Comment], files: &[ChangedFile]) -> PageText {
        let kind = if is_pull { "PR" } else { "Issue" };
        let title = format!("{kind} #{number}: {} [{name}]", self.title.as_deref().unwrap_or("(no title)"));
        let mut text = String::new();
        let labels = self.labels.iter().map(|label| label.name.as_str()).collect::<Vec<_>>().join(", ");
        let lines = [
            ("Repository", name),
            ("State", if self.merged { "merged" } else { &self.state }),
            ("Author", author(self.user.as_ref())),
            ("Created", self.created_at.as_deref().unwrap_or_default()),
            ("Updated", self.updated_at.as_deref().unwrap_or_default()),
            ("Labels", &labels),
            ("URL", &self.html_url),
        ];
        for (key, value) in lines.into_iter().filter(|(_, value)| !value.is_empty()) {
            let _ = writeln!(text, "**{key}:** {value}");
        }
        let body = self.body.as_deref().map(str::trim).filter(|body| !body.is_empty()).unwrap_or("(no description)");
        let _ = write!(text, "\n---\n\n{body}");
        if !files.is_empty() {
            let _ = write!(text, "\n\n## Files\n\n| File | Change | Lines |\n| --- | --- | --- |");
            for file in files {
                let ChangedFile { filename, status, additions, deletions } = file;
                let _ = write!(text, "\n| {} | {status} | +{additions} −{deletions} |", filename.replace('|', "\\|"));
            }
        }
        for comment in comments {
            let (author, when) = (author(comment.user.as_ref()), comment.created_at.as_deref().unwrap_or("unknown"));
            let body = comment.body.as_deref().unwrap_or_default().trim();
            let _ = write!(text, "\n\n## Comment by {author}, {when}\n\n{body}");
        }
        let mut notes = Vec::new();
        if self.comments > comments.len() {
            notes.push(format!("{} of {} comments are shown.", comments.len(), self.comments));
        }
        if self.changed_files > files.len() {
            notes.push(format!("{} of {} files are shown.", files.len(), self.changed_files));
        }
        PageText { title, text: text.replace("\r\n", "\n"), notes }
    }
}

fn author(user: Option<&User>) -> &str {
    user.map_or("unknown", |user| &user.login)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_urls_of_issues_pull_requests_files_and_repositories_are_recognised() {
        let of = |path: &str| {
            let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
            format!("{:?}", GitHubItem::of(&segments[2..]))
        };
        assert_eq!(of("o/r"), "Some(Repository)");
        assert_eq!(of("o/r/issues/12"), "Some(Issue(\"12\"))");
        assert_eq!(of("o/r/pull/12/files"), "Some(Pull(\"12\"))");
        assert_eq!(of("o/r/blob/main/src/lib.rs"), "Some(File([\"main\", \"src\", \"lib.rs\"]))");
        for path in ["o/r/issues", "o/r/issues/new", "o/r/blob/main", "o/r/tree/main/src", "o/r/wiki"] {
            assert_eq!(of(path), "None", "{path}");
        }
    }
}
