# Completion of cairn in bash.
_cairn() {
    # The words as bash runs them: readline also splits them at the characters of COMP_WORDBREAKS, such as : and =.
    local words=() index=-1 line=$COMP_LINE n piece bare
    for ((n = 0; n <= COMP_CWORD; n++)); do
        piece=${COMP_WORDS[n]}
        bare=${line#"${line%%[![:space:]]*}"}
        if ((n == 0)) || [[ $bare != "$line" ]]; then
            words[++index]=
        fi
        line=${bare#*"$piece"}
        # Of the word at the cursor only the part before the cursor counts.
        if ((n == COMP_CWORD)) && [[ -n $2 || $piece != [:=]* ]]; then
            piece=$2
        fi
        words[index]+=$piece
    done

    mapfile -t COMPREPLY < <(
        _CLAP_IFS=$'\n' _CLAP_COMPLETE_INDEX=$index CAIRN_COMPLETE=bash cairn -- "${words[@]}" 2>/dev/null
    )

    # Readline keeps the part of the word before its last break.
    local kept=${words[index]%"$2"}
    for n in "${!COMPREPLY[@]}"; do
        piece=${COMPREPLY[n]#"$kept"}
        if [[ $piece == *[[:space:]\'\"\$\&\;\<\>\|\(\)\*\?]* && $2 != [\'\"]* ]]; then
            printf -v piece %q "$piece"
        fi
        COMPREPLY[n]=$piece
    done
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=/:] ]]; then
        compopt -o nospace 2>/dev/null
    fi
}
complete -o nosort -F _cairn cairn 2>/dev/null || complete -F _cairn cairn
