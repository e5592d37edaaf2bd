//! The library's types, with the claims that no standard names.

use openidconnect::core::{
    CoreAuthDisplay, CoreAuthPrompt, CoreClaimName, CoreClaimType, CoreClientAuthMethod,
    CoreErrorResponseType, CoreGenderClaim, CoreGrantType, CoreJsonWebKey, CoreJweContentEncryptionAlgorithm,
    CoreJweKeyManagementAlgorithm, CoreJwsSigningAlgorithm, CoreResponseMode, CoreResponseType,
    CoreRevocableToken, CoreRevocationErrorResponse, CoreSubjectIdentifierType,
    CoreTokenIntrospectionResponse, CoreTokenType,
};
use openidconnect::{
    AdditionalClaims, AdditionalProviderMetadata, Client, DeviceAuthorizationUrl, EmptyExtraTokenFields,
    EndpointMaybeSet, EndpointNotSet, EndpointSet, IdTokenFields, ProviderMetadata, StandardErrorResponse,
    StandardTokenResponse, UserInfoClaims,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// What the discovery document says beside the usual (RFC 8628, 4).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeviceEndpoint {
    device_authorization_endpoint: Option<DeviceAuthorizationUrl>,
}

impl DeviceEndpoint {
    /// Where codes are asked for; none: the provider does not offer the device flow.
    pub fn device_authorization_endpoint(&self) -> Option<DeviceAuthorizationUrl> {
        self.device_authorization_endpoint.clone()
    }
}

impl AdditionalProviderMetadata for DeviceEndpoint {}

/// Claims beside the standard's.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Claims {
    #[serde(flatten)]
    more: Map<String, Value>,
}

impl AdditionalClaims for Claims {}

/// A discovery document.
pub type Metadata = ProviderMetadata<
    DeviceEndpoint,
    CoreAuthDisplay,
    CoreClientAuthMethod,
    CoreClaimName,
    CoreClaimType,
    CoreGrantType,
    CoreJweContentEncryptionAlgorithm,
    CoreJweKeyManagementAlgorithm,
    CoreJsonWebKey,
    CoreResponseMode,
    CoreResponseType,
    CoreSubjectIdentifierType,
>;

/// What the token endpoint gives.
pub type Tokens = StandardTokenResponse<
    IdTokenFields<
        Claims,
        EmptyExtraTokenFields,
        CoreGenderClaim,
        CoreJweContentEncryptionAlgorithm,
        CoreJwsSigningAlgorithm,
    >,
    CoreTokenType,
>;

/// What the userinfo endpoint gives.
pub type UserInfo = UserInfoClaims<Claims, CoreGenderClaim>;

/// A client of a provider that was discovered, and that offers the device flow.
pub type OidcClient = Client<
    Claims,
    CoreAuthDisplay,
    CoreGenderClaim,
    CoreJweContentEncryptionAlgorithm,
    CoreJsonWebKey,
    CoreAuthPrompt,
    StandardErrorResponse<CoreErrorResponseType>,
    Tokens,
    CoreTokenIntrospectionResponse,
    CoreRevocableToken,
    CoreRevocationErrorResponse,
    EndpointSet,
    EndpointSet,
    EndpointNotSet,
    EndpointNotSet,
    EndpointMaybeSet,
    EndpointMaybeSet,
>;
