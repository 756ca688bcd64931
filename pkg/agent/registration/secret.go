package registration

import (
	"bytes"
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

// secretLabel marks objects of an agent: no work may have such an object.
const secretLabel = "hawser.dev/agent"

// Secret is a [Store] in a Kubernetes Secret.
type Secret struct {
	Client corev1client.SecretInterface
	Name   string

	// last is the data last read or written, nil before that and if there was none.
	last map[string][]byte
}

// Load implements [Store].
func (s *Secret) Load(ctx context.Context) (map[string][]byte, error) {
	o, err := s.Client.Get(ctx, s.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		s.last = nil
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read the Secret %s: %w", s.Name, err)
	}
	s.last = o.Data
	return o.Data, nil
}

// Save implements [Store]. It creates the Secret again if it was deleted.
func (s *Secret) Save(ctx context.Context, data map[string][]byte) error {
	o, err := s.Client.Get(ctx, s.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		o, err = s.Client.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: s.Name, Labels: map[string]string{secretLabel: "true"}},
			Type:       corev1.SecretTypeOpaque, Data: data,
		}, metav1.CreateOptions{})
	case err != nil:
	case !sameData(o.Data, s.last) && !sameData(o.Data, data): // the second is true after a lost answer
		return fmt.Errorf("the Secret %s: %w: is there another agent that uses it?", s.Name, ErrTaken)
	default:
		metav1.SetMetaDataLabel(&o.ObjectMeta, secretLabel, "true") // another process may have created it
		o.Data = data
		o, err = s.Client.Update(ctx, o, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("write the Secret %s: %w", s.Name, err)
	}
	s.last = o.Data
	return nil
}

func sameData(a, b map[string][]byte) bool { return maps.EqualFunc(a, b, bytes.Equal) }
