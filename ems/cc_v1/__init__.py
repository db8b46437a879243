"""The SDK's configuration classes for registered caches; the path is fixed by the SDK."""
