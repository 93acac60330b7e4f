package web

import (
	"context"
	"fmt"
	"net/http"

	"golang.org/x/crypto/bcrypt"
)

// unknownCost is the lowest bcrypt cost of a check for an unknown user.
const unknownCost = bcrypt.DefaultCost

// verifier checks passwords in a time that depends neither on whether the user exists nor on the
// cost of the user's hash. exporter-toolkit checks an unknown user at cost 10, whatever the cost of
// the real hashes is. verifier is safe for concurrent use.
type verifier struct {
	users func() (hashes map[string]string, err error)
	// compare checks a password in 2^cost units of time.
	compare func(hash, password []byte) error
	one     chan struct{} // has a value while a password is checked: one at a time
}

func newVerifier(users func() (map[string]string, error)) *verifier {
	return &verifier{users: users, compare: bcrypt.CompareHashAndPassword, one: make(chan struct{}, 1)}
}

// admit reports whether a request may proceed, and answers it if not.
func (v *verifier) admit(w http.ResponseWriter, r *http.Request) bool {
	user, password, _ := r.BasicAuth()
	right, err := v.verify(r.Context(), user, password)
	switch {
	case right:
		return true
	case err != nil:
		respond(w, http.StatusInternalServerError, "the password can't be checked\n")
	default:
		w.Header().Set("WWW-Authenticate", "Basic")
		respond(w, http.StatusUnauthorized, http.StatusText(http.StatusUnauthorized)+"\n")
	}
	return false
}

// hasUsers reports whether a password is needed, or may be.
func (v *verifier) hasUsers() bool {
	hashes, err := v.users()
	return err != nil || len(hashes) > 0
}

// verify reports whether a password is that of a user.
func (v *verifier) verify(ctx context.Context, user, password string) (bool, error) {
	hashes, err := v.users()
	if err != nil {
		return false, fmt.Errorf("read users: %w", err)
	}
	if len(hashes) == 0 { // no user is configured, so no password is needed
		return true, nil
	}
	most := unknownCost
	for _, hash := range hashes {
		if cost, err := bcrypt.Cost([]byte(hash)); err == nil {
			most = max(most, cost)
		}
	}
	if err := enter(ctx, v.one); err != nil {
		return false, fmt.Errorf("check a password: %w", err)
	}
	defer func() { <-v.one }()
	hash := []byte(hashes[user])
	cost, err := bcrypt.Cost(hash)
	if err != nil { // no such user
		_ = v.compare(placeholder(most), []byte(password))
		return false, nil
	}
	right := v.compare(hash, []byte(password)) == nil
	for ; !right && cost < most; cost++ { // 2^cost + ... + 2^(most-1) = 2^most - 2^cost
		_ = v.compare(placeholder(cost), []byte(password))
	}
	return right, nil
}

// placeholder returns a hash with a cost that no password matches.
func placeholder(cost int) []byte {
	return fmt.Appendf(nil, "$2y$%02d$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi", cost)
}
