package manifestwork

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	workv1 "open-cluster-management.io/api/work/v1"
)

// StatusHash returns the statushash of a status: SHA-256, in lower-case hex, of its canonical JSON. That is the
// JSON of a ManifestWork's status field with the members of each object sorted by name.
func StatusHash(status workv1.ManifestWorkStatus) (string, error) {
	text, err := canonicalStatus(status)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}

func canonicalStatus(status workv1.ManifestWorkStatus) ([]byte, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&status)
	if err != nil {
		return nil, fmt.Errorf("status hash: %w", err)
	}
	text, err := json.Marshal(fields)
	if err != nil {
		return nil, fmt.Errorf("status hash: %w", err)
	}
	return text, nil
}
