package web

import (
	"context"
	"fmt"
	"net/http"

	"golang.org/x/crypto/bcrypt"
)

// unknownCost is the least cost of the check of a user that there is not: that of bcrypt by
// default.
const unknownCost = bcrypt.DefaultCost

// verifier checks passwords in a time that depends neither on whether there is the user nor on the
// cost of the user's hash. exporter-toolkit takes the same time for an unknown user as for one
// whose hash has cost 10. It is safe for concurrent use.
type verifier struct {
	users func() (hashes map[string]string, err error)
	// compare checks a password; it takes 2^cost units of time.
	compare func(hash, password []byte) error
	one     chan struct{} // has a value while a password is checked: one at a time
}

func newVerifier(users func() (map[string]string, error)) *verifier {
	return &verifier{users: users, compare: bcrypt.CompareHashAndPassword, one: make(chan struct{}, 1)}
}

// admit reports whether a request with a password may go on, and else answers it.
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

// verify reports whether a password is that of a user.
func (v *verifier) verify(ctx context.Context, user, password string) (bool, error) {
	hashes, err := v.users()
	if err != nil {
		return false, fmt.Errorf("read users: %w", err)
	}
	if len(hashes) == 0 { // nobody needs a password
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
	if err != nil { // there is no such user
		_ = v.compare(placeholder(most), []byte(password))
		return false, nil
	}
	right := v.compare(hash, []byte(password)) == nil
	for ; !right && cost < most; cost++ { // 2^cost + ... + 2^(most-1) = 2^most - 2^cost
		_ = v.compare(placeholder(cost), []byte(password))
	}
	return right, nil
}

// placeholder returns a hash of a cost that is no password's.
func placeholder(cost int) []byte {
	return fmt.Appendf(nil, "$2y$%02d$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi", cost)
}
