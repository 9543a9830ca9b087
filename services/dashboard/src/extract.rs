//! Parts of a request. Those that are not understood are answered as every other error of the interface: JSON with `error`.

use axum::Json;
use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

use crate::api::ApiError;

/// The query of an address.
pub(crate) struct ApiQuery<T>(pub T);

/// The names in an address.
pub(crate) struct ApiPath<T>(pub T);

/// A body of JSON.
pub(crate) struct ApiBody<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for ApiQuery<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let query = Query::<T>::from_request_parts(parts, state).await;
        query.map(|Query(query)| Self(query)).map_err(|refusal: QueryRejection| {
            let text = refusal.body_text();
            ApiError(refusal.status(), text.trim_start_matches("Failed to deserialize query string: ").to_owned())
        })
    }
}

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for ApiPath<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let path = Path::<T>::from_request_parts(parts, state).await;
        path.map(|Path(path)| Self(path)).map_err(|refusal: PathRejection| ApiError(refusal.status(), refusal.body_text()))
    }
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for ApiBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let body = Json::<T>::from_request(request, state).await;
        body.map(|Json(body)| Self(body)).map_err(|refusal: JsonRejection| ApiError(refusal.status(), refusal.body_text()))
    }
}
