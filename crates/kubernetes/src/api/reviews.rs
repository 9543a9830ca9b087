//! Asks the API server for the user of a token (`TokenReview`).
//!
//! In: a bearer token and its audience. Out: the user and the audiences from the API server, no user, or the reason why there
//! is no answer. The caller decides about access. The token is sent to the API server only. Since an answer repeats the
//! request, nothing of an answer is shown except the text of a refusal, without the token.

use std::fmt;
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use kube::core::Request;
use kube::core::params::PostParams;
use kube::{Client, Resource};
use serde::Deserialize;

use crate::api::client::error_text_with_right;

/// One question: a sender waits for it.
const ANSWER: Duration = Duration::from_secs(5);

/// Whom the API server takes the bearer of a token for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReviewedUser {
    /// The name of the user; of a service account `system:serviceaccount:NAMESPACE:NAME`.
    pub user: String,
    /// Requested audiences for which the token is valid; none if the API server does not know audiences.
    pub audiences: Vec<String>,
}

/// Asks about tokens.
pub struct TokenReviews {
    client: Client,
}

impl fmt::Debug for TokenReviews {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reviews").finish_non_exhaustive()
    }
}

/// The part of the answer that does not repeat the token.
#[derive(Deserialize)]
struct CachedReview {
    #[serde(default)]
    status: TokenReviewStatus,
}

impl TokenReviews {
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// Returns the user of a token; `None` if it is invalid, or not for this audience. The error has the reason why there is
    /// no answer, as text.
    pub async fn review(&self, token: &str, audience: &str) -> Result<Option<ReviewedUser>, String> {
        let answer = tokio::time::timeout(ANSWER, self.create_review(token, audience)).await;
        let answer = answer.unwrap_or_else(|_| Err(format!("no answer from the API server within {} s", ANSWER.as_secs())));
        let status = answer.map_err(|detail| format!("reviewing a token: {}", redact_token(token, &detail)))?;
        if let Some(detail) = status.error.as_deref().filter(|detail| !detail.is_empty()) {
            tracing::debug!(detail = redact_token(token, detail), "a token was not accepted");
        }
        Ok(read_bearer(status))
    }

    async fn create_review(&self, token: &str, audience: &str) -> Result<TokenReviewStatus, String> {
        let spec = TokenReviewSpec { token: token.to_owned(), audiences: Some(vec![audience.to_owned()]) };
        let review = TokenReview { spec, ..TokenReview::default() };
        let body = serde_json::to_vec(&review).map_err(|error| error.to_string())?;
        let request = Request::new(TokenReview::url_path(&(), None)).create(&PostParams::default(), body);
        let request = request.map_err(|error| error.to_string())?;
        // Read as text, since the client's own parser logs an answer that it cannot parse.
        let text =
            self.client.request_text(request).await.map_err(|error| error_text_with_right(&error, "create", "tokenreviews"))?;
        let answer: CachedReview =
            serde_json::from_str(&text).map_err(|_| "the API server's answer is no TokenReview".to_owned())?;
        Ok(answer.status)
    }
}

fn read_bearer(status: TokenReviewStatus) -> Option<ReviewedUser> {
    let user = status.user.and_then(|user| user.username).filter(|_| status.authenticated == Some(true))?;
    Some(ReviewedUser { user, audiences: status.audiences.unwrap_or_default() })
}

/// Returns a server's text, in which it may repeat the token, without the token.
fn redact_token(token: &str, text: &str) -> String {
    text.replace(token, "TOKEN")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(answer: &Value) -> Option<ReviewedUser> {
        read_bearer(serde_json::from_value::<CachedReview>(answer.clone()).unwrap().status)
    }

    #[test]
    fn only_who_is_authenticated_is_somebody() {
        let user = json!({"username": "system:serviceaccount:team-a:train", "uid": "u-1", "groups": ["system:serviceaccounts"]});
        let full = json!({
            "kind": "TokenReview", "spec": {"token": "t", "audiences": ["eadt"]},
            "status": {"authenticated": true, "user": user, "audiences": ["eadt"]},
        });
        let found = read(&full).unwrap();
        assert_eq!((found.user.as_str(), found.audiences), ("system:serviceaccount:team-a:train", vec!["eadt".to_owned()]));
        for (status, found) in [
            (json!({"authenticated": true, "user": user}), Some(vec![])),
            (json!({"authenticated": false, "user": user, "audiences": ["eadt"]}), None),
            (json!({"user": user, "audiences": ["eadt"]}), None),
            (json!({"authenticated": true, "audiences": ["eadt"]}), None),
            (json!({"authenticated": true, "user": {}, "audiences": ["eadt"]}), None),
            (json!({"error": "invalid bearer token"}), None),
            (json!({}), None),
        ] {
            assert_eq!(read(&json!({"status": status})).map(|bearer| bearer.audiences), found, "{status}");
        }
        assert_eq!(read(&json!({})), None);
    }

    #[test]
    fn a_refusal_names_the_right_that_is_missing_and_no_token() {
        let status = kube::core::Status::failure("tokenreviews is forbidden", "Forbidden").with_code(403).boxed();
        let message = error_text_with_right(&kube::Error::Api(status), "create", "tokenreviews");
        assert!(message.contains("create for tokenreviews"), "{message}");
        assert_eq!(redact_token("a.b.c", "token a.b.c is bad"), "token TOKEN is bad");
    }
}
