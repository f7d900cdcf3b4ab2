#!/usr/bin/env bash
# An MLflow server with accounts for a team, on a PostgreSQL of its own that keeps everything in one folder:
#
#     deploy/mlflow/serve.sh FOLDER ARTIFACTS [options of `mlflow server`]
#     deploy/mlflow/serve.sh ~/mlflow s3://BUCKET/mlflow --host 0.0.0.0 --allowed-hosts mlflow.example.com
#
# FOLDER (a local disk, a path of 90 characters at most) has the database, its log and the password of `admin`, for this
# user alone. ARTIFACTS is a folder or an address, which outlives the machine. Searches of this user on this machine are
# let in by ~/.mlflow/credentials, which the first start writes. SIGTERM or Ctrl-C ends both servers.
# Needs PostgreSQL (Debian and Ubuntu: apt-get install postgresql; not as root, whom PostgreSQL refuses) and, in the
# environment whose `mlflow` is on the path: pip install --constraint constraints.txt 'mlflow[auth]' 'psycopg[binary]' boto3
set -euo pipefail
umask 077

fail() { echo "error: $1" >&2; exit 2; }
(($# >= 2)) || fail "serve.sh wants FOLDER and ARTIFACTS, as in: deploy/mlflow/serve.sh ~/mlflow s3://BUCKET/mlflow"
folder=$(realpath --canonicalize-missing -- "$1") artifacts=$2
shift 2
PATH=$PATH:$(printf '%s:' /usr/lib/postgresql/*/bin)  # where Debian has the programs that a server needs
for each in initdb postgres pg_isready mlflow; do
    command -v "$each" >/dev/null || fail "$each is missing: the first lines of serve.sh say what to install"
done
((EUID)) || fail "PostgreSQL refuses to run as root: start serve.sh as another user"

mkdir -p -- "$folder"
[[ -O $folder ]] || fail "$folder belongs to another user: give a folder of your own"
chmod 700 "$folder"   # it may have been there, open to all
exec {lock}>"$folder/lock"
flock --nonblock "$lock" || fail "another server runs on $folder"
for secret in admin-password session-key; do
    [[ -s $folder/$secret ]] || od -An -N24 -tx1 /dev/urandom | tr -d ' \n' >"$folder/$secret"
done
if [[ ! -e ~/.mlflow/credentials ]]; then
    mkdir -p ~/.mlflow
    printf '[mlflow]\nmlflow_tracking_username = admin\nmlflow_tracking_password = %s\n' \
        "$(<"$folder/admin-password")" >~/.mlflow/credentials
fi

# The database listens on a socket in the folder alone, which only this user may enter: no port, no password. The kernel
# says who connects: nobody but this user, even where the folder was opened. A database of before gets the same rules.
[[ -e $folder/database/PG_VERSION ]] ||
    initdb --pgdata "$folder/database" --username mlflow --auth-local peer --auth-host reject --encoding UTF8 \
        >"$folder/initdb.log"
echo 'local all all peer map=owner' >"$folder/database/pg_hba.conf"
printf 'owner "%s" mlflow\n' "$(id -un)" >"$folder/database/pg_ident.conf"
setsid postgres -D "$folder/database" -c listen_addresses= -c unix_socket_directories="$folder" \
    -c unix_socket_permissions=0700 \
    >>"$folder/postgresql.log" 2>&1 &
database=$!
server=
stop() {  # the server and its workers first, which have connections to the database
    [[ -z $server ]] || { kill -- "-$server" && wait "$server"; } 2>/dev/null || true
    { kill -INT "$database" && wait "$database"; } 2>/dev/null || true
}
trap stop EXIT
trap 'exit 143' TERM
trap 'exit 130' INT
until pg_isready --quiet --host "$folder" --username mlflow; do
    kill -0 "$database" 2>/dev/null || fail "PostgreSQL did not start: see $folder/postgresql.log"
    sleep 0.2
done

uri="postgresql://mlflow@/postgres?host=$folder"
# One experiment has all searches of a space: whoever has an account may add runs to it.
cat >"$folder/auth.ini" <<END
[mlflow]
database_uri = $uri
admin_username = admin
default_permission = EDIT
authorization_function = mlflow.server.auth:authenticate_request_basic_auth
END
export MLFLOW_AUTH_CONFIG_PATH=$folder/auth.ini
MLFLOW_AUTH_ADMIN_PASSWORD=$(<"$folder/admin-password") MLFLOW_FLASK_SERVER_SECRET_KEY=$(<"$folder/session-key")
export MLFLOW_AUTH_ADMIN_PASSWORD MLFLOW_FLASK_SERVER_SECRET_KEY
setsid mlflow server --app-name basic-auth --backend-store-uri "$uri" --artifacts-destination "$artifacts" "$@" &
server=$!
wait "$server"
