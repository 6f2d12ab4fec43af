//! Query strings, read as strictly as bodies.

use std::collections::BTreeMap;

use axum::extract::Query;
use axum::http::Uri;
use chrono::DateTime;
use chrono::Utc;

use crate::status::ApiError;

/// The parameters of one query string, each there at most once and each known to the route.
#[derive(Debug, Default)]
pub(crate) struct Parameters(BTreeMap<String, String>);

impl Parameters {
    /// Reads them.
    pub(crate) fn read(uri: &Uri, known: &[&str]) -> Result<Self, ApiError> {
        let pairs = Query::<Vec<(String, String)>>::try_from_uri(uri)
            .map_err(|error| ApiError::invalid_parameter("query", &error.to_string()))?;
        let mut parameters = BTreeMap::new();
        for (name, value) in pairs.0 {
            if !known.contains(&name.as_str()) {
                return Err(ApiError::unknown_parameter(&name, known));
            }
            if parameters.insert(name.clone(), value).is_some() {
                return Err(ApiError::invalid_parameter(
                    &name,
                    "this parameter is there twice",
                ));
            }
        }
        Ok(Self(parameters))
    }

    /// A position in the ledger.
    pub(crate) fn position(&self, name: &str) -> Result<Option<u64>, ApiError> {
        self.0
            .get(name)
            .map(|text| read_position(name, text))
            .transpose()
    }

    /// A non-negative whole number.
    pub(crate) fn number(&self, name: &str) -> Result<Option<u64>, ApiError> {
        let read = |text: &String| read_number(text).ok_or_else(|| not_a_number(name));
        self.0.get(name).map(read).transpose()
    }

    /// A text that must be there.
    pub(crate) fn required(&self, name: &str) -> Result<&str, ApiError> {
        self.text(name)
            .ok_or_else(|| ApiError::missing_parameter(name))
    }

    /// A text.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Yes or no; no where it is left out.
    pub(crate) fn flag(&self, name: &str) -> Result<bool, ApiError> {
        match self.text(name) {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(ApiError::invalid_parameter(name, "must be true or false")),
        }
    }

    /// A time.
    pub(crate) fn time(&self, name: &str) -> Result<Option<DateTime<Utc>>, ApiError> {
        let read = |text: &String| {
            // A `+` that was not escaped arrives as a space; an offset is all that it can have been.
            fluxvm_api_types::parse_rfc3339(&text.replace(' ', "+"))
                .map_err(|message| ApiError::invalid_parameter(name, &message))
        };
        self.0.get(name).map(read).transpose()
    }
}

/// A non-negative whole number, as a caller writes it.
pub(crate) fn read_number(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    Some(text).filter(|_| digits)?.parse().ok()
}

fn not_a_number(name: &str) -> ApiError {
    ApiError::invalid_parameter(name, "must be a whole number, 0 or more")
}

/// A position in the ledger, as a caller writes it.
pub(crate) fn read_position(name: &str, text: &str) -> Result<u64, ApiError> {
    let number = read_number(text);
    number.ok_or_else(|| ApiError::invalid_parameter(name, "must be the seq of an event, or 0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(query: &str) -> Result<(Option<u64>, Option<String>), ApiError> {
        let uri: Uri = format!("/x?{query}").parse().expect("uri");
        let parameters = Parameters::read(&uri, &["after", "since"])?;
        let since = parameters.time("since")?.map(|time| time.to_rfc3339());
        Ok((parameters.position("after")?, since))
    }

    #[test]
    fn parameters_are_read_by_name() {
        let since = Some("2026-12-01T09:00:00+00:00".to_owned());
        assert_eq!(read("").expect("none"), (None, None));
        assert_eq!(
            read("after=17&since=2026-12-01T09:00:00Z").expect("both"),
            (Some(17), since)
        );
        let offset = read("since=2026-12-01T10:00:00+01:00").expect("offset").1;
        assert_eq!(offset.as_deref(), Some("2026-12-01T09:00:00+00:00"));
    }

    #[test]
    fn what_does_not_hold_is_named() {
        for (query, code, field) in [
            ("after=x", "invalid_field", "after"),
            ("after=", "invalid_field", "after"),
            ("after=-1", "invalid_field", "after"),
            ("after=+1", "invalid_field", "after"),
            ("after=1&after=2", "invalid_field", "after"),
            ("since=yesterday", "invalid_field", "since"),
            ("sinc=2026-12-01T09:00:00Z", "unknown_field", "sinc"),
        ] {
            let error = read(query).expect_err(query);
            assert_eq!(error.code(), code, "{query}");
            let body = String::from_utf8(error.body().to_vec()).expect("text");
            assert!(
                body.contains(&format!("\"field\":\"{field}\"")),
                "{query}: {body}"
            );
        }
    }
}
